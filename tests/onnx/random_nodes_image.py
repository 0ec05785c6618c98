"""Nodes over images: resizing, sampling, regions."""
import numpy

from random_nodes import Node, generator

NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize_attributes(r, opset, mode):
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    if opset >= 19:
        coordinates.append("half_pixel_symmetric")
    coordinates.append("tf_crop_and_resize")
    attributes = {"mode": mode}
    if r.chance(0.8):
        attributes["coordinate_transformation_mode"] = r.pick(*coordinates)
    if mode == "nearest" and r.chance(0.8):
        attributes["nearest_mode"] = r.pick(*NEAREST)
    if mode == "cubic":
        if r.chance():
            attributes["cubic_coeff_a"] = r.pick(-0.5, -0.75)
        if r.chance(0.4):
            attributes["exclude_outside"] = 1
    return attributes


@generator("Resize")
def resize(r):
    """ONNX Runtime resizes by cubic and antialias in two dimensions only. Scales are fractions of powers of two, and
    what is cropped has many digits, with which no position is between two neighbours by rounding."""
    opset = r.pick(10, 11, 13, 18, 19)
    mode = r.pick("nearest", "nearest", "linear", "cubic") if opset > 10 else r.pick("nearest", "linear")
    spatial = 2 if mode == "cubic" else r.int(1, 3) if opset > 10 else 2
    shape = [r.int(1, 2), r.int(1, 3), *(r.int(1, 7) for _ in range(spatial))]
    t = r.pick("float32", "float32", "float32", "uint8", "int8") if mode != "cubic" else "float32"
    x = r.tensor(shape, t, -100 if t == "int8" else -3 if t == "float32" else 0, 100 if t != "float32" else 3)
    if opset == 10:
        scales = numpy.array([1, 1, *(r.pick(0.5, 1, 2, 3, 1.5, 0.75) for _ in range(2))], "float32")
        if any(int(n * s) < 1 for n, s in zip(shape, scales)):
            scales = numpy.maximum(scales, 1)
        return Node("Resize", [x, scales], {"mode": mode}, opset=10, constants={1: r.chance(0.9)}, steps=1, units=512)
    attributes = resize_attributes(r, opset, mode)
    crops = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if opset >= 18 and mode != "nearest" and spatial == 2 and not crops and r.chance(0.4):
        attributes["antialias"] = 1
    axes = list(range(len(shape)))
    if opset >= 18 and r.chance(0.4):
        axes = axes[2:]
        if r.chance() and opset >= 19:
            axes = axes[::-1]
        attributes["axes"] = [a - len(shape) if r.chance(0.3) else a for a in axes]
    roi = scales = sizes = None
    if crops:
        start = [0.0 if a < 2 else float(r.floats([], 0, 0.5)) for a in axes]
        end = [1.0 if a < 2 else float(r.floats([], 0.5, 1.2)) for a in axes]
        roi = numpy.array(start + end, "float32")
        if r.chance():
            attributes["extrapolation_value"] = 1.5 if t == "float32" else 3.0
    if r.chance():
        scales = numpy.array([1 if a < 2 else r.pick(0.5, 0.75, 1, 1.5, 2, 3, 2.25) for a in axes], "float32")
        if any(int(shape[a] * s) < 1 for a, s in zip(axes, scales)):
            scales = numpy.maximum(scales, 1)
        if crops or attributes.get("coordinate_transformation_mode") == "align_corners":
            scales = numpy.ceil(scales)  # else ONNX Runtime has the length rounded down, the standard's examples not
    else:
        sizes = numpy.array([shape[a] if a < 2 else r.int(1, 12) for a in axes], "int64")
        if mode == "nearest" and not crops:
            sizes = numpy.array([shape[a] * (1 if a < 2 else r.pick(1, 2, 4)) for a in axes], "int64")
        if opset >= 18 and "axes" in attributes and not crops and r.chance(0.5):
            attributes["axes"] = axes  # of negative ones, ONNX Runtime does not see the policy
            attributes["keep_aspect_ratio_policy"] = r.pick("stretch", "not_larger", "not_smaller")
    for i, a in enumerate(axes if crops else ()):
        if (scales[i] if sizes is None else sizes[i] / shape[a]) == 1:
            roi[i], roi[i + len(axes)] = 0, 1  # ONNX Runtime does not crop where the extent stays
    if opset < 13 and scales is None:
        scales = numpy.array([], "float32")
    if opset < 13 and roi is None:
        roi = numpy.array([], "float32")
    operands = [x, roi, scales, sizes]
    constant = r.chance(0.9)
    return Node("Resize", operands, attributes, opset=opset, constants={1: True, 2: constant, 3: constant}, units=512,
                steps=1)


@generator("Upsample")
def upsample(r):
    opset, mode = r.pick(7, 9), r.pick("nearest", "linear")
    scales = [1.0, 1.0, float(r.pick(1, 2, 3, 1.5)), float(r.pick(1, 2, 3, 2.5))]
    x = r.floats([r.int(1, 2), r.int(1, 3), r.int(1, 6), r.int(1, 6)])
    if opset == 7:
        return Node("Upsample", [x], {"mode": mode, "scales": scales}, opset=7)
    return Node("Upsample", [x, numpy.array(scales, "float32")], {"mode": mode}, opset=9, constants={1: r.chance(0.8)})


@generator("GridSample")
def grid_sample(r):
    """Version 16 calls the modes bilinear and bicubic. Cubic in three dimensions does not exist."""
    opset, spatial = r.pick(16, 20, 22), r.pick(2, 2, 3)
    if spatial == 3:
        opset = r.pick(20, 22)
    modes = ["nearest", "bilinear", "bicubic"] if opset == 16 else ["nearest", "linear", "cubic"]
    attributes = {"mode": r.pick(*modes[:2] if spatial == 3 else modes)}
    if r.chance(0.7):
        attributes["padding_mode"] = r.pick("zeros", "border", "reflection")
    if r.chance(0.7):
        attributes["align_corners"] = r.int(0, 1)
    t = r.pick("float32", "float32", "float64") if opset >= 20 else "float32"
    batch = r.int(1, 2)
    x = r.floats([batch, r.int(1, 3), *(r.int(1, 6) for _ in range(spatial))], dtype=t)
    low = 1.6 if r.chance() else 1.0
    grid = r.floats([batch, *(r.int(1, 5) for _ in range(spatial)), spatial], -low, low, t)
    return Node("GridSample", [x, grid], attributes, opset=opset, units=1024)


@generator("AffineGrid")
def affine_grid(r):
    spatial, batch = r.int(2, 3), r.int(1, 3)
    t = r.pick("float32", "float64")
    theta = r.floats([batch, spatial, spatial + 1], dtype=t)
    size = numpy.array([batch, r.int(1, 3), *(r.int(2, 6) for _ in range(spatial))], "int64")
    attributes = {"align_corners": r.int(0, 1)} if r.chance(0.7) else {}
    return Node("AffineGrid", [theta, size], attributes, opset=20, constants={1: r.chance(0.9)})


@generator("RoiAlign")
def roi_align(r):
    opset = r.pick(10, 16, 22)
    t = r.pick("float32", "float32", "float64")
    shape, count = [r.int(1, 3), r.int(1, 3), r.int(2, 8), r.int(2, 8)], r.int(1, 4)
    scale = r.pick(1.0, 0.5, 0.25)
    begin = r.floats([count, 2], -1, 4, t) / scale
    rois = numpy.concatenate([begin, begin + r.floats([count, 2], 0.3, 6, t) / scale], 1).astype(t)
    attributes = {"spatial_scale": scale}
    for name in ("output_height", "output_width"):
        if r.chance(0.8):
            attributes[name] = r.int(1, 4)
    attributes["sampling_ratio"] = r.int(0, 3)
    if r.chance():
        attributes["mode"] = r.pick("avg", "max")
    if opset >= 16 and r.chance():
        attributes["coordinate_transformation_mode"] = r.pick("half_pixel", "output_half_pixel")
    operands = [r.floats(shape, dtype=t), rois, r.ints([count], 0, shape[0] - 1)]
    return Node("RoiAlign", operands, attributes, opset=opset, units=512)


@generator("MaxRoiPool")
def max_roi_pool(r):
    shape, count = [r.int(1, 3), r.int(1, 3), r.int(2, 8), r.int(2, 8)], r.int(1, 4)
    scale = r.pick(1.0, 0.5)
    rois = numpy.zeros([count, 5], "float32")
    rois[:, 0] = r.ints([count], 0, shape[0] - 1)
    rois[:, 1:3] = r.ints([count, 2], 0, 3) / scale
    rois[:, 3:] = rois[:, 1:3] + r.ints([count, 2], 0, 6) / scale
    attributes = {"pooled_shape": [r.int(1, 4), r.int(1, 4)]}
    if scale != 1 or r.chance():
        attributes["spatial_scale"] = scale
    return Node("MaxRoiPool", [r.floats(shape), rois], attributes, opset=r.pick(1, 22))
