/* Shared by session.c, train.c and states.c. */
#ifndef KVA_TOOLS_LIBRARY_SESSION_H
#define KVA_TOOLS_LIBRARY_SESSION_H

#include "runtime/formula.h"
#include "runtime/session.h"
#include "tools/library/library.h"

kvasir_tensor kva_public_tensor(const kva_tensor *t);

/* Checks a caller's tensors against the first n_program inputs of a program as far as the runtime does not, and copies
 * them to s->inputs. read: they need data. */
KVA_MUST_USE kva_status kva_library_inputs(kvasir_session *s, const kva_program *p, size_t n_program,
                                           const kvasir_tensor *inputs, size_t n, bool read, kva_diag *diag);

/* Gives dropout the session's seed. */
KVA_MUST_USE kva_status kva_library_seed(kvasir_session *s, kva_diag *diag);

#endif
