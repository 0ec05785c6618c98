/* Shared by the files of runtime/base/external. */
#ifndef KVA_BASE_EXTERNAL_EXTERNAL_H
#define KVA_BASE_EXTERNAL_EXTERNAL_H

#include "runtime/base/external.h"

typedef kva_status (*kva_external_fn)(kva_external_call *c);

/* Sets the reason and returns `status`. */
kva_status kva_external_fail(kva_external_call *c, kva_status status, const char *fmt, ...) KVA_PRINTF(3, 4);
/* Checks that the arguments have these types, all with as many elements as the result. */
KVA_MUST_USE kva_status kva_external_expect(kva_external_call *c, uint32_t n_args, const kva_dtype *types);
/* Element i of argument a, the number of a string, as text. */
KVA_MUST_USE kva_status kva_external_text(kva_external_call *c, uint32_t a, int64_t i, const char **out);
/* Sets element i of the result, the number of a string. */
void kva_external_set_text(kva_external_call *c, int64_t i, const char *s, size_t n);

kva_status kva_external_strings_in(kva_external_call *c);
kva_status kva_external_strings_out(kva_external_call *c);
kva_status kva_external_string_bytes(kva_external_call *c);
kva_status kva_external_string_concat(kva_external_call *c);
kva_status kva_external_string_lower(kva_external_call *c);
kva_status kva_external_string_upper(kva_external_call *c);
kva_status kva_external_string_match(kva_external_call *c);
kva_status kva_external_string_parts(kva_external_call *c);
kva_status kva_external_string_part(kva_external_call *c);
kva_status kva_external_string_parse(kva_external_call *c);
kva_status kva_external_string_format(kva_external_call *c);
kva_status kva_external_image_size(kva_external_call *c);
kva_status kva_external_image_decode(kva_external_call *c);

#endif
