/* Low-rank updates (lora.c), for tune.c and weights.c. */
#ifndef KVA_PASSES_LORA_H
#define KVA_PASSES_LORA_H

#include "passes/tune.h"

KVA_MUST_USE kva_status kva_add_lora(kva_module *m, const kva_tune_options *o);

#endif
