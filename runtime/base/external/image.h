/* Image files, decoded as 8-bit RGB. One function a format; where its library was not found when Kvasir was built, it
 * fails and says so. */
#ifndef KVA_BASE_EXTERNAL_IMAGE_H
#define KVA_BASE_EXTERNAL_IMAGE_H

#include "runtime/base/external/external.h"

typedef struct kva_image {
  int64_t width, height;
  uint8_t *rgb; /* [height, width, 3], from malloc */
} kva_image;

/* KVA_INVALID if an image of this size, which a file declares, has no pixels or too many. */
KVA_MUST_USE kva_status kva_image_check(kva_external_call *c, int64_t width, int64_t height);
/* Memory for width x height pixels, which come from a file: KVA_INVALID if they are none or too many. */
KVA_MUST_USE kva_status kva_image_create(kva_external_call *c, int64_t width, int64_t height, kva_image *out);

/* KVA_INVALID: a damaged file of this format. */
KVA_MUST_USE kva_status kva_image_damaged(kva_external_call *c, const char *format, const char *reason);
/* KVA_UNSUPPORTED: Kvasir was built without the library of this format. */
KVA_MUST_USE kva_status kva_image_unknown(kva_external_call *c, const char *format);

kva_status kva_image_jpeg(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out);
kva_status kva_image_png(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out);
kva_status kva_image_webp(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out);
kva_status kva_image_tiff(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out);
kva_status kva_image_jp2(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out);

#endif
