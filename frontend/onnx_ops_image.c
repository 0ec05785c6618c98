/* Rule: ImageDecoder, by libraries (runtime/base/external.h). The size of the image is data, so the file is decoded
 * twice: for its size, then for its pixels. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

kva_status kva_onnx_image_decoder(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  const char *format = kva_onnx_string(k, "pixel_format", "RGB");
  bool grey = !strcmp(format, "Grayscale");
  kva_dim two = kva_expr_const(kva_onnx_exprs(k), 2), channels = kva_expr_const(kva_onnx_exprs(k), grey ? 1 : 3);
  if (x->type->dtype != KVA_U8 || x->type->rank != 1)
    return kva_onnx_fail(k, KVA_INVALID, "expected the bytes of a file: uint8 of rank 1");
  if (!grey && strcmp(format, "RGB") && strcmp(format, "BGR"))
    return kva_onnx_fail(k, KVA_INVALID, "pixel_format is '%s', expected RGB, BGR or Grayscale", format);
  kva_external_attrs size = {.name = "image_size", .shape = {1, &two}, .to = KVA_I64};
  const kva_dims *bound = kva_onnx_bind_elements(k->c, kva_build(b, KVA_OP_external, 1, &x, &size), "pixels");
  if (!bound) return KVA_INVALID;
  kva_dim shape[3] = {bound->v[0], bound->v[1], channels};
  kva_external_attrs pixels = {
      .name = "image_decode", .text = kva_arena_strdup(b->m->arena, format), .shape = {3, shape}, .to = KVA_U8};
  return kva_onnx_done(k, kva_build(b, KVA_OP_external, 1, &x, &pixels));
}
