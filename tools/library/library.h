/* What libkvasir and the tool share: one way from a file to a session. kvasir.h is the part for other programs; its
 * functions check their arguments and call these. */
#ifndef KVA_TOOLS_LIBRARY_H
#define KVA_TOOLS_LIBRARY_H

#include "codegen/cache.h"
#include "tools/driver/driver.h"
#include "tools/library/kvasir.h"

#include <stdatomic.h>

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* Where a model comes from; strings are copied, `data` is borrowed. */
typedef struct kva_model_source {
  const char *path; /* with data: a name for messages */
  const void *data; /* the model's bytes; NULL: the file at `path` */
  size_t size;
  kva_load_options load;
  const char *weights; /* see kva_load_weights; NULL: none */
} kva_model_source;

struct kvasir_model {
  kva_arena *arena;
  kva_model_source source;
  kva_module *module; /* NULL: compiled; kva_model_take reads it again */
  const char *name;
  size_t n_inputs, n_outputs;
  kvasir_port *inputs, *outputs;
};

/* Reads a model. Warnings go to diag, too. */
KVA_MUST_USE kva_status kva_model_open(const kva_model_source *source, kva_diag *diag, kvasir_model **out_model);
/* The module, for compiling: owned by the caller, reports to diag. */
KVA_MUST_USE kva_status kva_model_take(kvasir_model *model, kva_diag *diag, kva_module **out_module);

/* ---- programs and sessions --------------------------------------------------------------------------------------- */

struct kvasir_program {
  atomic_int references; /* the caller's and one a session */
  kva_arena *arena;
  kva_compiled *compiled;
  const char *device; /* of its sessions; NULL: the CPU */
  size_t n_inputs;    /* of a training step, without the rate */
  kvasir_port *inputs;
  const kva_data_range *ranges; /* of the inputs' values */
  size_t n_values;              /* scalars that training and evaluation report */
  const char **values;
  kva_schedule schedule;
};

/* Compiles a module, which the program owns afterwards; on failure it is destroyed. */
KVA_MUST_USE kva_status kva_program_compile(kva_module *m, const kva_compile_options *options, const char *device,
                                            kva_diag *diag, kvasir_program **out_program);

struct kvasir_session {
  kvasir_program *program;
  kva_session *s;
  uint64_t seed;
  int64_t steps;                /* training steps done */
  kva_tensor *inputs, *outputs; /* of calls; as many as the largest program has */
};

/* A session on the program's device; options->device is ignored. */
KVA_MUST_USE kva_status kva_program_session(kvasir_program *p, const kva_session_options *options, kva_diag *diag,
                                            kvasir_session **out_session);

/* ---- choices ----------------------------------------------------------------------------------------------------- */

/* The user's folder of compiled code: $KVASIR_CACHE, else kvasir/ in $XDG_CACHE_HOME or in ~/.cache; in the arena. NULL
 * with the reason: KVASIR_CACHE=off, or no home folder. */
const kva_cache *kva_user_cache(kva_arena *arena, const char **out_reason);
/* That folder, with the tool's limit of size; `folder` is borrowed. */
const kva_cache *kva_cache_in(kva_arena *arena, const char *folder);
/* Sets what to compile for. Fails for a device that this machine does not have. target NULL: the device's own; gemm:
 * a name of kva_gemm_named, or NULL, the device's default. */
KVA_MUST_USE kva_status kva_choose_target(const char *device, const char *target, const char *gemm, kva_diag *diag,
                                          kva_target_options *out);
/* The memory of what a device computes on: of the GPU, or of this machine. The environment's KVASIR_MACHINE_MEMORY, a
 * number of bytes, is the limit where that is less; "off": none is known. */
KVA_MUST_USE kva_status kva_choose_room(const char *device, kva_diag *diag, kva_room *out);

/* ---- calls of kvasir.h ------------------------------------------------------------------------------------------- */

/* Calls `work` with a new diag, which becomes *out_messages unless it stays empty. A failed assertion of Kvasir and an
 * arena that cannot grow are a status. */
typedef kva_status (*kva_library_work)(void *job, kva_diag *diag);
kvasir_status kva_library_call(kva_library_work work, void *job, kvasir_messages **out_messages);
/* The answer to a null pointer in the place of an object's address: there is nowhere to put the object. */
kvasir_status kva_library_no_place(kvasir_messages **out_messages);

#endif
