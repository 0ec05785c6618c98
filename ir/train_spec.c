/* Describes the numeric fields of a train block. */
#include "ir/ir.h"

#include <stddef.h>

#define FLOAT(f, usual) \
  { #f, KVA_ATTR_FLOAT, (uint32_t)offsetof(kva_train_spec, f), usual }
#define INT(f) \
  { #f, KVA_ATTR_INT, (uint32_t)offsetof(kva_train_spec, f), 0 }

static const kva_attr_field fields[] = {
    FLOAT(lr, 1e-3),        FLOAT(beta1, 0.9),    FLOAT(beta2, 0.999), FLOAT(eps, 1e-8),
    FLOAT(weight_decay, 0), FLOAT(momentum, 0.9), FLOAT(clip, 0),      INT(warmup_steps),
    INT(total_steps),       INT(steps),           INT(batch),          FLOAT(final_lr_ratio, 0),
};

const kva_attr_desc kva_train_numbers = {
    .size = sizeof(kva_train_spec), .n_fields = sizeof fields / sizeof *fields, .fields = fields};

kva_train_spec *kva_train_spec_create(kva_arena *arena) {
  kva_train_spec *spec = kva_attrs_default(arena, &kva_train_numbers);
  spec->optimizer = "adamw";
  spec->schedule = "constant";
  return spec;
}
