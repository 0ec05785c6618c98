/* Image formats that libraries decode. KVA_WITH_<library> says that the build has found it. */
#include "runtime/base/external/image.h"

#include <stdlib.h>

const char *kva_image_formats(void) {
  return "BMP, PNM"
#ifdef KVA_WITH_JPEG
         ", JPEG"
#endif
#ifdef KVA_WITH_PNG
         ", PNG"
#endif
#ifdef KVA_WITH_WEBP
         ", WebP"
#endif
#ifdef KVA_WITH_TIFF
         ", TIFF"
#endif
#ifdef KVA_WITH_OPENJP2
         ", JPEG 2000"
#endif
      ;
}

/* ---- jpeg -------------------------------------------------------------------------------------------------------- */

#ifdef KVA_WITH_JPEG
#include <turbojpeg.h>

kva_status kva_image_jpeg(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  tjhandle h = tjInitDecompress();
  int width = 0, height = 0, sampling, space;
  if (!h) return KVA_NO_MEMORY;
  kva_status status = KVA_OK;
  if (tjDecompressHeader3(h, bytes, n, &width, &height, &sampling, &space))
    status = kva_image_damaged(c, "JPEG", tjGetErrorStr2(h));
  if (!status) status = kva_image_create(c, width, height, out);
  if (!status && tjDecompress2(h, bytes, n, out->rgb, width, 0, height, TJPF_RGB, TJFLAG_STOPONWARNING))
    status = kva_image_damaged(c, "JPEG", tjGetErrorStr2(h));
  tjDestroy(h);
  return status;
}
#else
kva_status kva_image_jpeg(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  (void)bytes, (void)n, (void)out;
  return kva_image_unknown(c, "JPEG");
}
#endif

/* ---- png --------------------------------------------------------------------------------------------------------- */

#ifdef KVA_WITH_PNG
#include <png.h>

kva_status kva_image_png(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  png_image png = {.version = PNG_IMAGE_VERSION};
  kva_status status = KVA_OK;
  if (!png_image_begin_read_from_memory(&png, bytes, n)) status = kva_image_damaged(c, "PNG", png.message);
  if (!status && (png.format & PNG_FORMAT_FLAG_ALPHA))
    status = kva_external_fail(c, KVA_UNSUPPORTED, "a PNG file with transparency");
  png.format = PNG_FORMAT_RGB;
  if (!status) status = kva_image_create(c, png.width, png.height, out);
  if (!status && !png_image_finish_read(&png, NULL, out->rgb, 0, NULL))
    status = kva_image_damaged(c, "PNG", png.message);
  png_image_free(&png);
  return status;
}
#else
kva_status kva_image_png(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  (void)bytes, (void)n, (void)out;
  return kva_image_unknown(c, "PNG");
}
#endif

/* ---- webp -------------------------------------------------------------------------------------------------------- */

#ifdef KVA_WITH_WEBP
#include <webp/decode.h>

kva_status kva_image_webp(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  WebPBitstreamFeatures f;
  if (WebPGetFeatures(bytes, n, &f) != VP8_STATUS_OK) return kva_image_damaged(c, "WebP", "its header");
  if (f.has_alpha || f.has_animation)
    return kva_external_fail(c, KVA_UNSUPPORTED, "a WebP file with transparency or animation");
  KVA_TRY(kva_image_create(c, f.width, f.height, out));
  if (WebPDecodeRGBInto(bytes, n, out->rgb, (size_t)f.width * (size_t)f.height * 3, f.width * 3)) return KVA_OK;
  return kva_image_damaged(c, "WebP", "its pixels");
}
#else
kva_status kva_image_webp(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  (void)bytes, (void)n, (void)out;
  return kva_image_unknown(c, "WebP");
}
#endif

/* ---- files in memory --------------------------------------------------------------------------------------------- */

#if defined KVA_WITH_TIFF || defined KVA_WITH_OPENJP2
typedef struct memory {
  const uint8_t *bytes;
  size_t n, at;
} memory;

static size_t take(memory *m, void *to, size_t n) {
  size_t left = m->n - m->at;
  if (n > left) n = left;
  if (n) memcpy(to, m->bytes + m->at, n);
  m->at += n;
  return n;
}
#endif

/* ---- tiff -------------------------------------------------------------------------------------------------------- */

#ifdef KVA_WITH_TIFF
#include <tiffio.h>

static tmsize_t tiff_read(thandle_t user, void *to, tmsize_t n) {
  return (tmsize_t)take((memory *)user, to, (size_t)n);
}
static tmsize_t tiff_write(thandle_t user, void *from, tmsize_t n) {
  (void)user, (void)from, (void)n;
  return 0;
}
static toff_t tiff_seek(thandle_t user, toff_t at, int whence) {
  memory *m = (memory *)user;
  toff_t to = at + (whence == SEEK_CUR ? m->at : whence == SEEK_END ? m->n : 0);
  if (to <= m->n) m->at = (size_t)to;
  return to <= m->n ? to : (toff_t)-1;
}
static int tiff_close(thandle_t user) {
  (void)user;
  return 0;
}
static toff_t tiff_size(thandle_t user) {
  return ((memory *)user)->n;
}

static kva_status tiff_pixels(kva_external_call *c, TIFF *t, kva_image *out) {
  uint32_t width = 0, height = 0;
  uint16_t samples = 1;
  TIFFGetField(t, TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(t, TIFFTAG_IMAGELENGTH, &height);
  TIFFGetFieldDefaulted(t, TIFFTAG_SAMPLESPERPIXEL, &samples);
  if (samples != 1 && samples != 3)
    return kva_external_fail(c, KVA_UNSUPPORTED, "a TIFF file of %u samples a pixel", samples);
  KVA_TRY(kva_image_create(c, width, height, out));
  uint32_t *pixels = malloc((size_t)width * height * sizeof *pixels);
  if (!pixels) return KVA_NO_MEMORY;
  bool ok = TIFFReadRGBAImageOriented(t, width, height, pixels, ORIENTATION_TOPLEFT, 1);
  for (size_t i = 0; ok && i < (size_t)width * height; i++) {
    out->rgb[3 * i] = (uint8_t)TIFFGetR(pixels[i]);
    out->rgb[3 * i + 1] = (uint8_t)TIFFGetG(pixels[i]);
    out->rgb[3 * i + 2] = (uint8_t)TIFFGetB(pixels[i]);
  }
  free(pixels);
  return ok ? KVA_OK : kva_image_damaged(c, "TIFF", "its pixels");
}

kva_status kva_image_tiff(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  memory m = {bytes, n, 0};
  TIFFSetErrorHandler(NULL);
  TIFFSetWarningHandler(NULL);
  TIFF *t = TIFFClientOpen("memory", "rm", (thandle_t)&m, tiff_read, tiff_write, tiff_seek, tiff_close, tiff_size, NULL,
                           NULL);
  if (!t) return kva_image_damaged(c, "TIFF", "its header");
  kva_status status = tiff_pixels(c, t, out);
  TIFFClose(t);
  return status;
}
#else
kva_status kva_image_tiff(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  (void)bytes, (void)n, (void)out;
  return kva_image_unknown(c, "TIFF");
}
#endif

/* ---- jpeg 2000 --------------------------------------------------------------------------------------------------- */

#ifdef KVA_WITH_OPENJP2
#include <openjpeg.h>

static OPJ_SIZE_T jp2_read(void *to, OPJ_SIZE_T n, void *user) {
  size_t got = take(user, to, n);
  return got || !n ? got : (OPJ_SIZE_T)-1;
}
static OPJ_OFF_T jp2_skip(OPJ_OFF_T n, void *user) {
  memory *m = user;
  if (n < 0 || (size_t)n > m->n - m->at) return -1;
  m->at += (size_t)n;
  return n;
}
static OPJ_BOOL jp2_seek(OPJ_OFF_T at, void *user) {
  memory *m = user;
  if (at < 0 || (size_t)at > m->n) return OPJ_FALSE;
  m->at = (size_t)at;
  return OPJ_TRUE;
}

/* Three components of 8 bits, or one, without subsampling. */
static kva_status jp2_pixels(kva_external_call *c, const opj_image_t *image, kva_image *out) {
  bool fine = image->numcomps == 1 || image->numcomps == 3;
  for (uint32_t i = 0; fine && i < image->numcomps; i++) {
    const opj_image_comp_t *p = &image->comps[i];
    fine = p->prec == 8 && !p->sgnd && p->data && p->w == image->comps[0].w && p->h == image->comps[0].h;
  }
  if (!fine || image->color_space == OPJ_CLRSPC_SYCC || image->color_space == OPJ_CLRSPC_EYCC)
    return kva_external_fail(c, KVA_UNSUPPORTED, "a JPEG 2000 file that is neither RGB nor grey in 8 bits");
  KVA_TRY(kva_image_create(c, image->comps[0].w, image->comps[0].h, out));
  for (int64_t i = 0; i < out->width * out->height; i++)
    for (uint32_t j = 0; j < 3; j++) out->rgb[3 * i + j] = (uint8_t)image->comps[image->numcomps == 3 ? j : 0].data[i];
  return KVA_OK;
}

kva_status kva_image_jp2(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  memory m = {bytes, n, 0};
  opj_dparameters_t parameters;
  opj_image_t *image = NULL;
  opj_codec_t *codec = opj_create_decompress(OPJ_CODEC_JP2);
  opj_stream_t *stream = opj_stream_default_create(OPJ_TRUE);
  opj_set_default_decoder_parameters(&parameters);
  if (stream) {
    opj_stream_set_read_function(stream, jp2_read);
    opj_stream_set_skip_function(stream, jp2_skip);
    opj_stream_set_seek_function(stream, jp2_seek);
    opj_stream_set_user_data(stream, &m, NULL);
    opj_stream_set_user_data_length(stream, n);
  }
  bool ok = codec && stream && opj_setup_decoder(codec, &parameters) && opj_read_header(stream, codec, &image);
  kva_status status = ok ? kva_image_check(c, (int64_t)image->x1 - image->x0, (int64_t)image->y1 - image->y0)
                         : kva_image_damaged(c, "JPEG 2000", "its header");
  if (!status && !(opj_decode(codec, stream, image) && opj_end_decompress(codec, stream)))
    status = kva_image_damaged(c, "JPEG 2000", "its pixels");
  if (!status) status = jp2_pixels(c, image, out);
  opj_image_destroy(image);
  opj_stream_destroy(stream);
  opj_destroy_codec(codec);
  return status;
}
#else
kva_status kva_image_jp2(kva_external_call *c, const uint8_t *bytes, size_t n, kva_image *out) {
  (void)bytes, (void)n, (void)out;
  return kva_image_unknown(c, "JPEG 2000");
}
#endif
