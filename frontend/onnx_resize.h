/* Resizing of one axis: what the files of rules Resize and Upsample share. */
#ifndef KVA_FRONTEND_ONNX_RESIZE_H
#define KVA_FRONTEND_ONNX_RESIZE_H

#include "frontend/onnx_rules.h"

typedef enum kva_onnx_coordinates {
  HALF_PIXEL,
  HALF_PIXEL_SYMMETRIC,
  PYTORCH_HALF_PIXEL,
  ALIGN_CORNERS,
  ASYMMETRIC,
  CROP_AND_RESIZE,
  HALF_PIXEL_FOR_NEAREST,
} kva_onnx_coordinates;

typedef enum kva_onnx_rounding {
  ROUND_PREFER_FLOOR,
  ROUND_PREFER_CEIL,
  ROUND_FLOOR,
  ROUND_CEIL,
  ROUND_BY_SCALE /* version 10: up where the axis shrinks, else down */
} kva_onnx_rounding;
typedef enum kva_onnx_resize_mode { NEAREST, LINEAR, CUBIC } kva_onnx_resize_mode;

typedef struct kva_onnx_resizing {
  kva_onnx_resize_mode mode;
  kva_onnx_coordinates coordinates;
  kva_onnx_rounding rounding;
  bool antialias, exclude_outside;
  double cubic_a, extrapolation;
  double roi_start, roi_end; /* of the axis, for CROP_AND_RESIZE */
} kva_onnx_resizing;

/* A double that is the nearest float to x. */
kva_value *kva_onnx_rounded_to_float(kva_builder *b, kva_value *x);
/* Resizes an axis of x to `out` elements by a factor that may be known at run time only; `scale` is a double scalar. */
KVA_MUST_USE kva_status kva_onnx_resize_by_data(kva_onnx_call *k, const kva_onnx_resizing *r, uint32_t axis,
                                                kva_dim out, kva_value *scale, kva_value **x);

#endif
