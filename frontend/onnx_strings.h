/* Strings in models. While a graph is imported, tensors of strings have dtype string, so that rules see them and type
 * rules hold; afterwards their elements are the numbers of runtime/base/external.h, and only inputs and outputs of the
 * model have dtype string. */
#ifndef KVA_FRONTEND_ONNX_STRINGS_H
#define KVA_FRONTEND_ONNX_STRINGS_H

#include "frontend/onnx_rules.h"

/* Function `name` of runtime/base/external.h on n operands of one shape, which its result has, too. */
kva_value *kva_strings_call(kva_builder *b, const char *name, const char *text, int64_t number, kva_dtype to,
                            uint32_t n, kva_value *const *operands);
/* Ends the import of function f, whose graph is finished: see above. */
KVA_MUST_USE kva_status kva_strings_lower(kva_module *m, kva_function *f);

#endif
