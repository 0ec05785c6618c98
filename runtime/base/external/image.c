/* Image files: which format they have, the plain formats, and pixels as programs want them. */
#include "runtime/base/external/image.h"

#include <stdlib.h>

enum { MAX_PIXELS = 1 << 28 };

kva_status kva_image_check(kva_external_call *c, int64_t width, int64_t height) {
  int64_t pixels;
  if (width >= 1 && height >= 1 && kva_mul_size(width, height, &pixels) && pixels <= MAX_PIXELS) return KVA_OK;
  return kva_external_fail(c, KVA_INVALID, "an image of %lld x %lld pixels, expected 1 to %d", (long long)width,
                           (long long)height, MAX_PIXELS);
}

kva_status kva_image_create(kva_external_call *c, int64_t width, int64_t height, kva_image *out) {
  KVA_TRY(kva_image_check(c, width, height));
  *out = (kva_image){width, height, malloc((size_t)(width * height) * 3)};
  return out->rgb ? KVA_OK : KVA_NO_MEMORY;
}

kva_status kva_image_damaged(kva_external_call *c, const char *format, const char *reason) {
  return kva_external_fail(c, KVA_INVALID, "a damaged %s file: %.150s", format, reason);
}

kva_status kva_image_unknown(kva_external_call *c, const char *format) {
  return kva_external_fail(c, KVA_UNSUPPORTED, "this build has no library for %s files", format);
}

/* ---- bmp --------------------------------------------------------------------------------------------------------- */

static uint32_t u32_at(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Uncompressed, 24 or 32 bits a pixel. Rows are padded to 4 bytes and stand bottom up unless the height is negative. */
static kva_status read_bmp(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  if (n < 54) return kva_external_fail(c, KVA_INVALID, "a BMP file of %zu bytes", n);
  int64_t width = (int32_t)u32_at(bytes + 18), height = (int32_t)u32_at(bytes + 22);
  uint32_t start = u32_at(bytes + 10), bits = u32_at(bytes + 26) >> 16, compression = u32_at(bytes + 30);
  bool down = height < 0;
  if (down) height = -height;
  if ((bits != 24 && bits != 32) || compression)
    return kva_external_fail(c, KVA_UNSUPPORTED, "a BMP file of %u bits a pixel, compression %u", bits, compression);
  KVA_TRY(kva_image_create(c, width, height, out));
  int64_t step = bits / 8, line = (width * step + 3) / 4 * 4;
  if (start > n || line * height > (int64_t)(n - start))
    return kva_external_fail(c, KVA_INVALID, "a BMP file is cut off");
  for (int64_t y = 0; y < height; y++)
    for (int64_t x = 0; x < width; x++) {
      const uint8_t *from = bytes + start + (down ? y : height - 1 - y) * line + x * step;
      for (int i = 0; i < 3; i++) out->rgb[(y * width + x) * 3 + i] = from[2 - i];
    }
  return KVA_OK;
}

/* ---- pnm --------------------------------------------------------------------------------------------------------- */

/* The number at *at behind white space and comments; -1: there is none. */
static int64_t number(const uint8_t *bytes, size_t n, size_t *at) {
  int64_t v = -1;
  while (*at < n && (bytes[*at] <= ' ' || bytes[*at] == '#')) {
    if (bytes[(*at)++] != '#') continue;
    while (*at < n && bytes[*at] != '\n') ++*at;
  }
  for (; *at < n && bytes[*at] >= '0' && bytes[*at] <= '9' && v < INT32_MAX; ++*at)
    v = (v < 0 ? 0 : v) * 10 + bytes[*at] - '0';
  return v;
}

/* Binary grey maps and pixmaps of 8 bits. */
static kva_status read_pnm(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  size_t at = 2;
  int64_t width = number(bytes, n, &at), height = number(bytes, n, &at), most = number(bytes, n, &at);
  int64_t channels = bytes[1] == '6' ? 3 : 1;
  if ((bytes[1] != '5' && bytes[1] != '6') || most != 255)
    return kva_external_fail(c, KVA_UNSUPPORTED,
                             "a PNM file of type P%c with values up to %lld; P5 and P6 with 255 "
                             "are supported",
                             bytes[1], (long long)most);
  KVA_TRY(kva_image_create(c, width, height, out));
  if (at >= n || width * height * channels > (int64_t)(n - at - 1))
    return kva_external_fail(c, KVA_INVALID, "a PNM file is cut off");
  for (int64_t i = 0; i < width * height * 3; i++) out->rgb[i] = bytes[at + 1 + (size_t)(channels == 3 ? i : i / 3)];
  return KVA_OK;
}

/* ---- all formats ------------------------------------------------------------------------------------------------- */

static const struct {
  const char *magic;
  size_t n;
  kva_status (*decode)(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out);
} formats[] = {
    {"BM", 2, read_bmp},
    {"P5", 2, read_pnm},
    {"P6", 2, read_pnm},
    {"\xff\xd8\xff", 3, kva_image_jpeg},
    {"\x89PNG", 4, kva_image_png},
    {"RIFF", 4, kva_image_webp},
    {"II*\0", 4, kva_image_tiff},
    {"MM\0*", 4, kva_image_tiff},
    {"\0\0\0\x0cjP  ", 8, kva_image_jp2},
};

static kva_status decode(kva_external_call *c, kva_image *out) {
  const uint8_t *bytes = c->args[0].data;
  size_t n = (size_t)c->args[0].n;
  *out = (kva_image){0};
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
    if (n > formats[i].n && !memcmp(bytes, formats[i].magic, formats[i].n)) return formats[i].decode(c, bytes, n, out);
  return kva_external_fail(c, KVA_INVALID, "%zu bytes are no BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP file", n);
}

static kva_status expect(kva_external_call *c, kva_dtype result) {
  if (c->n_args == 2 && c->args[0].dtype == KVA_U8 && c->args[1].dtype == result) return KVA_OK;
  return kva_external_fail(c, KVA_INVALID, "expected the bytes of an image");
}

kva_status kva_external_image_size(kva_external_call *c) {
  kva_image image;
  KVA_TRY(expect(c, KVA_I64));
  kva_status status = c->args[1].n == 2 ? decode(c, &image) : KVA_INVALID;
  if (!status) ((int64_t *)c->args[1].data)[0] = image.height, ((int64_t *)c->args[1].data)[1] = image.width;
  if (c->args[1].n == 2) free(image.rgb);
  return status;
}

/* ITU-R 601 luma, rounded. */
static uint8_t grey(const uint8_t *rgb) {
  return (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

kva_status kva_external_image_decode(kva_external_call *c) {
  kva_image image;
  KVA_TRY(expect(c, KVA_U8));
  bool is_grey = !strcmp(c->text, "Grayscale"), reversed = !strcmp(c->text, "BGR");
  kva_status status = decode(c, &image);
  int64_t pixels = image.width * image.height;
  uint8_t *out = c->args[1].data;
  if (!status && c->args[1].n != pixels * (is_grey ? 1 : 3))
    status = kva_external_fail(c, KVA_INVALID, "the image has %lld pixels", (long long)pixels);
  for (int64_t i = 0; i < pixels && !status; i++) {
    const uint8_t *rgb = image.rgb + 3 * i;
    if (is_grey)
      out[i] = grey(rgb);
    else
      for (int j = 0; j < 3; j++) out[3 * i + j] = rgb[reversed ? 2 - j : j];
  }
  free(image.rgb);
  return status;
}
