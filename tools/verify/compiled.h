/* Functions of the graph IR executed by compiled code, node by node: a kva_executor (tools/verify/cases.h). */
#ifndef KVA_TOOLS_VERIFY_COMPILED_H
#define KVA_TOOLS_VERIFY_COMPILED_H

#include "codegen/codegen.h"
#include "tools/verify/cases.h"

/* user: const kva_target_options *, or NULL for the host. Nodes may be kv.kernel groups; constants are allowed, state
 * is not. Every kernel runs in two pieces, so that results must not depend on the division of work. */
kva_status kva_run_compiled(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                            kva_ref_tensor **outputs, kva_diag *diag);

#endif
