/* KVShift from every spelling of it: how rows are moved, how copies are mixed, what lies before row 0; and near misses. */
#include "tests/passes/raise_case.h"

#define X4   "double[B, T, H, 4] x, double[H, 1] a, double[H, 1] b"
#define XH   "double[B, H, T, 4] x, double[H, 1, 1] a, double[H, 1, 1] b"
#define X3   "double[B, T, 8] x, double[8] a, double[8] b"
#define HEAD "s = kv.slice <starts = [0, 0, 0, 0], shape = [B, T - 1, H, 4]> (x)\n" /* all rows but the last */
#define MIX  "\ny = a * x + b * p"
#define ZERO4 "z = kv.expand <shape = [B, 1, H, 4]> (double {0.0})\n"
#define ROLL "r = kv.concat <axis = 1> (kv.slice <starts = [0, T - 1, 0, 0], shape = [B, 1, H, 4]> (x), s)\n"
#define RAISED "kv_shift !pad !slice !add"

static const raise_case moves[] = {
    {"pad front, drop last", X4, "p = kv.slice <starts = [0, 0, 0, 0], shape = [B, T, H, 4]> (kv.pad <before = [0, 1, 0, 0], after = [0, 0, 0, 0]> (x))" MIX, RAISED, "time_axis = 1", 0},
    {"drop last, pad front", X4, HEAD "p = kv.pad <before = [0, 1, 0, 0], after = [0, 0, 0, 0]> (s)" MIX, RAISED, "time_axis = 1", 0},
    {"pad with a negative end", X4, "p = kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (x)" MIX, RAISED, "time_axis = 1", 0},
    {"zeros in front", X4, HEAD ZERO4 "p = kv.concat <axis = 1> (z, s)" MIX, RAISED, "time_axis = 1", 0},
    {"zeros in front, negative axis", X4, HEAD ZERO4 "p = kv.concat <axis = -3> (z, s)" MIX, RAISED, NULL, 0},
    {"zeros in front, drop last", X4, ZERO4 "p = kv.slice <starts = [0, 0, 0, 0], shape = [B, T, H, 4]> (kv.concat <axis = 1> (z, x))" MIX, RAISED, NULL, 0},
    {"heads first", XH, "p = kv.pad <before = [0, 0, 1, 0], after = [0, 0, -1, 0]> (x)" MIX, RAISED " !reshape*2 !transpose", NULL, 0},
    {"rank 3", X3, "p = kv.pad <before = [0, 1, 0], after = [0, -1, 0]> (x)" MIX, RAISED, "time_axis = 1", 0},
    {"rank 2", "double[T, 8] x, double[8] a, double[8] b", "p = kv.pad <before = [1, 0], after = [-1, 0]> (x)" MIX, RAISED, NULL, 0},
    {"rank 5", "double[B, T, 3, H, 4] x, double[3, H, 1] a, double[3, H, 1] b", "p = kv.pad <before = [0, 1, 0, 0, 0], after = [0, -1, 0, 0, 0]> (x)" MIX, RAISED, NULL, 0},
    {"static extents", "double[2, 5, 3, 4] x, double[3, 1] a, double[3, 1] b", "p = kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (x)" MIX, RAISED, NULL, 0},
    {"roll, then a row of zeros", X4, HEAD ROLL ZERO4 "p = kv.concat <axis = 1> (z, kv.slice <starts = [0, 1, 0, 0], shape = [B, T - 1, H, 4]> (r))" MIX, RAISED, NULL, 0},
    {"roll times mask", X4, HEAD ROLL "i = kv.iota <shape = [T], axis = 0> ()\nm = kv.reshape <shape = [T, 1, 1]> (kv.cast <to = double> (i > 0))\np = r * m" MIX, RAISED, NULL, 0},
    {"roll times 1 - mask", X4, HEAD ROLL "i = kv.reshape <shape = [1, T, 1, 1]> (kv.iota <shape = [T], axis = 0> ())\nm = 1.0 - kv.cast <to = double> (kv.equal(i, 0))\np = m * r" MIX, RAISED, NULL, 0},
    {"roll where mask", X4, HEAD ROLL "i = kv.iota <shape = [T, 1, 1], axis = 0> ()\np = kv.where(kv.equal(i, 0), double {0.0}, r)" MIX, RAISED, NULL, 0},
    {"roll times constant mask", "double[2, 4, 3, 4] x, double[3, 1] a, double[3, 1] b", "r = kv.concat <axis = 1> (kv.slice <starts = [0, 3, 0, 0], shape = [2, 1, 3, 4]> (x), kv.slice <starts = [0, 0, 0, 0], shape = [2, 3, 3, 4]> (x))\np = r * double[4, 1, 1] {0.0, 1.0, 1.0, 1.0}" MIX, RAISED, NULL, 0},
    {"shift only", "double[B, T, H, 4] x", "y = kv.exp(kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (x))", "kv_shift exp !pad", NULL, 0},
    {"not a shift: roll", X4, HEAD ROLL "p = r" MIX, "!kv_shift", NULL, 0},
    {"not a shift: roll with row 1 cleared", "double[2, 4, 3, 4] x, double[3, 1] a, double[3, 1] b", "r = kv.concat <axis = 1> (kv.slice <starts = [0, 3, 0, 0], shape = [2, 1, 3, 4]> (x), kv.slice <starts = [0, 0, 0, 0], shape = [2, 3, 3, 4]> (x))\np = r * double[4, 1, 1] {1.0, 0.0, 1.0, 1.0}" MIX, "!kv_shift", NULL, 0},
    {"not a shift: ones in front", X4, "p = kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (x, double {1.0})" MIX, "!kv_shift pad", NULL, 0},
    {"not a shift: towards the start", X4, "p = kv.pad <before = [0, -1, 0, 0], after = [0, 1, 0, 0]> (x)" MIX, "!kv_shift pad", NULL, 0},
    {"not a shift: along channels", X4, "p = kv.pad <before = [0, 0, 0, 1], after = [0, 0, 0, -1]> (x)" MIX, "!kv_shift pad", NULL, 0},
    {"not a shift: of another tensor", X4 ", double[B, T, H, 4] u", "p = kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (u)\ny = a * x * x + b * p * x", "kv_shift pow*0 add mul*3", NULL, 0},
    {"a shifted image stays a view", "double[2, 3, 5, 4] x", "y = kv.exp(kv.pad <before = [0, 0, 1, 0], after = [0, 0, -1, 0]> (x))", "!kv_shift pad", NULL, 0},
    {0},
};

#define SHIFTED4 "p = kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (x)\n"
#define SHIFTED3 "p = kv.pad <before = [0, 1, 0], after = [0, -1, 0]> (x)\n"

static const raise_case mixes[] = {
    {"scalars", "double[B, T, H, 4] x, double a, double b", SHIFTED4 "y = a * x + b * p", RAISED, NULL, 0},
    {"number and gate", "double[B, T, H, 4] x, double[H, 1] a", SHIFTED4 "y = 0.25 * x + a * p", RAISED, NULL, 0},
    {"complement", "double[B, T, H, 4] x, double[H, 1] a", SHIFTED4 "y = a * x + (1 - a) * p", "kv_shift !pad !add", NULL, 0},
    {"current only once", "double[B, T, H, 4] x, double[H, 1] a", SHIFTED4 "y = x + a * p", RAISED, NULL, 0},
    {"difference", "double[B, T, H, 4] x, double[H, 1] a", SHIFTED4 "y = x - a * p", RAISED, NULL, 0},
    {"interpolation", "double[B, T, 8] x, double[8] a", SHIFTED3 "y = x + a * (p - x)", "kv_shift !pad !add", NULL, 0},
    {"interpolation from the past", "double[B, T, 8] x, double[8] a", SHIFTED3 "y = p + (x - p) * a", "kv_shift !pad !add", NULL, 0},
    {"shared difference", "double[B, T, 8] x, double[8] a, double[8] b", SHIFTED3 "d = p - x\ny = kv.exp(x + a * d) * kv.tanh(x + b * d)", "kv_shift*2 !pad !add", NULL, 0},
    {"average", "double[B, T, 8] x", SHIFTED3 "y = (x + p) / 2", "kv_shift !pad !add !div", NULL, 0},
    {"negated", "double[B, T, 8] x", SHIFTED3 "y = -(x + p) + 2 * x", "kv_shift !pad !add !neg", NULL, 0},
    {"per token and head", "double[B, T, H, 4] x, double[B, T, H, 1] a", SHIFTED4 "g = kv.sigmoid(a)\ny = g * x + (1 - g) * p", "kv_shift !pad !add", NULL, 0},
    {"per token, heads first", "double[B, H, T, 4] x, double[B, H, T, 1] a", "p = kv.pad <before = [0, 0, 1, 0], after = [0, 0, -1, 0]> (x)\ny = x + a * p", "kv_shift !pad !add !transpose", NULL, 0},
    {"per token", "double[B, T, 8] x, double[B, T, 1] a", SHIFTED3 "y = x + a * p", "kv_shift !pad !add", NULL, 0},
    {"per channel and per head", "double[B, T, H, 4] x, double[H, 4] a, double[H, 1] b", SHIFTED4 "y = a * x + b * p", RAISED, NULL, 0},
    {"window of three", "double[B, T, H, 4] x, double[H, 1] a, double[H, 1] b", SHIFTED4 "q = kv.pad <before = [0, 2, 0, 0], after = [0, -2, 0, 0]> (x)\ny = x + a * p + b * q", RAISED, NULL, 0},
    {"window of three by shifting twice", "double[B, T, H, 4] x, double[H, 1] a, double[H, 1] b", SHIFTED4 "q = kv.pad <before = [0, 1, 0, 0], after = [0, -1, 0, 0]> (p)\ny = x + a * p + b * q", RAISED, NULL, 0},
    {"in float for half", "float16[B, T, H, 4] x, float[H, 1] a, float[H, 1] b", SHIFTED4 "y = kv.cast <to = float16> (a * kv.cast <to = float> (x) + b * kv.cast <to = float> (p))", "kv_shift !cast !pad", NULL, 1e-3},
    {"in float for half, widened first", "float16[B, T, H, 4] v, float[H, 1] a, float[H, 1] b", "x = kv.cast <to = float> (v)\n" SHIFTED4 "y = kv.cast <to = float16> (a * x + b * p)", "kv_shift !cast !pad", NULL, 1e-3},
    {"kept row", "double[B, T, 8] x, double[8] a, double[8] b", "y = kv.concat <axis = 1> (kv.slice <starts = [0, 0, 0], shape = [B, 1, 8]> (x), a * kv.slice <starts = [0, 1, 0], shape = [B, T - 1, 8]> (x) + b * kv.slice <starts = [0, 0, 0], shape = [B, T - 1, 8]> (x))", "kv_shift !add", "boundary = \"keep\"", 0},
    {"kept row, gated", "double[B, T, 8] x, double[8, 1] g", "n = kv.slice <starts = [0, 1, 0], shape = [B, T - 1, 8]> (x)\ny = kv.concat <axis = 1> (kv.slice <starts = [0, 0, 0], shape = [B, 1, 8]> (x), n + kv.sigmoid(n @ g) * kv.slice <starts = [0, 0, 0], shape = [B, T - 1, 8]> (x))", "kv_shift sigmoid !add", "boundary = \"keep\"", 0},
    {"kept row, two dims", "double[T, 8] x, double[8] a", "y = kv.concat <axis = 0> (kv.slice <starts = [0, 0], shape = [1, 8]> (x), kv.slice <starts = [1, 0], shape = [T - 1, 8]> (x) + a * kv.slice <starts = [0, 0], shape = [T - 1, 8]> (x))", "kv_shift !add", "boundary = \"keep\"", 0},
    {"edge, by concatenation", X3, "p = kv.concat <axis = 1> (kv.slice <starts = [0, 0, 0], shape = [B, 1, 8]> (x), kv.slice <starts = [0, 0, 0], shape = [B, T - 1, 8]> (x))" MIX, "kv_shift !slice !add", "boundary = \"edge\"", 0},
    {"edge, by padding", X3, "p = kv.slice <starts = [0, 0, 0], shape = [B, T, 8]> (kv.pad <before = [0, 1, 0], after = [0, 0, 0], mode = \"edge\"> (x))" MIX, "kv_shift !slice !add", "boundary = \"edge\"", 0},
    {"edge of three", "double[B, T, 8] x, double[8] a, double[8] b", "q = kv.pad <before = [0, 2, 0], after = [0, 0, 0], mode = \"edge\"> (x)\ny = x + a * kv.slice <starts = [0, 1, 0], shape = [B, T, 8]> (q) + b * kv.slice <starts = [0, 0, 0], shape = [B, T, 8]> (q)", "kv_shift !slice !add", "boundary = \"edge\"", 0},
    {"state", X3 ", double[B, 1, 8] s", "p = kv.concat <axis = 1> (s, kv.slice <starts = [0, 0, 0], shape = [B, T - 1, 8]> (x))" MIX, "kv_shift !slice !add", NULL, 0},
    {"state, drop last", "double[B, T, H, 4] x, double[H, 1] a, double[H, 1] b, double[B, 1, H, 4] s", "p = kv.slice <starts = [0, 0, 0, 0], shape = [B, T, H, 4]> (kv.concat <axis = 1> (s, x))" MIX, "kv_shift !slice !add !reshape", NULL, 0},
    {"state of three rows", "double[B, T, 8] x, double[8] a, double[8] b, double[B, 2, 8] s", "q = kv.concat <axis = 1> (s, x)\ny = x + a * kv.slice <starts = [0, 1, 0], shape = [B, T, 8]> (q) + b * kv.slice <starts = [0, 0, 0], shape = [B, T, 8]> (q)", "kv_shift !slice !add", NULL, 0},
    {"last row of a longer state", "double[B, T, 8] x, double[8] a, double[B, 3, 8] s", "q = kv.concat <axis = 1> (s, x)\ny = x + a * kv.slice <starts = [0, 2, 0], shape = [B, T, 8]> (q)", "kv_shift slice !add", NULL, 0},
    {"not a mix: weights per token and channel", "double[B, T, 8] x, double[B, T, 8] a", SHIFTED3 "y = x + a * p", "add", NULL, 0},
    {"not a mix: boundaries differ", "double[B, T, 8] x, double[B, 1, 8] s", SHIFTED3 "q = kv.concat <axis = 1> (s, kv.slice <starts = [0, 0, 0], shape = [B, T - 1, 8]> (x))\ny = x + p + 2 * q", "add", NULL, 0},
    {"not kept: the first row is another's", "double[B, T, 8] x, double[B, T, 8] u, double[8] a", "y = kv.concat <axis = 1> (kv.slice <starts = [0, 0, 0], shape = [B, 1, 8]> (u), kv.slice <starts = [0, 1, 0], shape = [B, T - 1, 8]> (x) + a * kv.slice <starts = [0, 0, 0], shape = [B, T - 1, 8]> (x))", "!kv_shift add", NULL, 0},
    {"not kept: the second row is", "double[2, 6, 8] x, double[8] a", "y = kv.concat <axis = 1> (kv.slice <starts = [0, 1, 0], shape = [2, 1, 8]> (x), kv.slice <starts = [0, 1, 0], shape = [2, 5, 8]> (x) + a * kv.slice <starts = [0, 0, 0], shape = [2, 5, 8]> (x))", "!kv_shift add", NULL, 0},
    {"not worth it: far apart", "double[B, T, 8] x", "y = x + kv.pad <before = [0, 5, 0], after = [0, -5, 0]> (x)", "!kv_shift pad", NULL, 0},
    {0},
};

#define STACK(i) "kv.reshape <shape = [B, T, H, 4, 1]> (kv.slice <starts = [0, " #i ", 0, 0], shape = [B, T, H, 4]> (p))"
#define PADDED "p = kv.pad <before = [0, 1, 0, 0], after = [0, 0, 0, 0]> (x)\n"

static const raise_case windows[] = {
    {"unfold by stacking", "double[B, T, H, 4] x, double[H, 1, 2] w", PADDED "u = kv.concat <axis = 4> (" STACK(0) ", " STACK(1) ")\ny = kv.reduce_sum <axes = [4], keepdims = false> (u * w)", "kv_shift !pad !reduce_sum", "time_axis = 1", 0},
    {"unfold by gathering", "double[B, T, H, 4] x, double[H, 1, 2] w", PADDED "i = kv.reshape <shape = [T, 1]> (kv.iota <shape = [T], axis = 0> ()) + kv.iota <shape = [2], axis = 0> ()\nu = kv.transpose <perm = [0, 1, 3, 4, 2]> (kv.gather <axis = 1> (p, i))\ny = kv.reduce_sum <axes = [-1], keepdims = false> (w * u)", "kv_shift !pad !reduce_sum !gather", NULL, 0},
    {"unfold by gathering, static", "double[2, 5, 8] x, double[3, 1] w", "p = kv.pad <before = [0, 2, 0], after = [0, 0, 0]> (x)\nu = kv.gather <axis = 1> (p, int64[5, 3] {0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6})\ny = kv.reduce_sum <axes = [2], keepdims = false> (u * w)", "kv_shift !pad !reduce_sum !gather", NULL, 0},
    {"unfold by windows", "double[2, 3, 8] x, double[8, 2] w",
     "p = kv.pad <before = [0, 1, 0], after = [0, 0, 0]> (x)\n"
     "u = kv.concat <axis = 1> (kv.reshape <shape = [2, 1, 8, 2]> (kv.transpose <perm = [0, 2, 1]> (kv.slice <starts = [0, 0, 0], shape = [2, 2, 8]> (p))),\n"
     "    kv.reshape <shape = [2, 1, 8, 2]> (kv.transpose <perm = [0, 2, 1]> (kv.slice <starts = [0, 1, 0], shape = [2, 2, 8]> (p))),\n"
     "    kv.reshape <shape = [2, 1, 8, 2]> (kv.transpose <perm = [0, 2, 1]> (kv.slice <starts = [0, 2, 0], shape = [2, 2, 8]> (p))))\n"
     "y = kv.reduce_sum <axes = [3], keepdims = false> (u * w)", "kv_shift !pad !reduce_sum", NULL, 0},
    {"not causal: centred stack", "double[B, T, H, 4] x, double[H, 1, 3] w", "p = kv.pad <before = [0, 1, 0, 0], after = [0, 1, 0, 0]> (x)\nu = kv.concat <axis = 4> (" STACK(0) ", " STACK(1) ", " STACK(2) ")\ny = kv.reduce_sum <axes = [4], keepdims = false> (u * w)", "reduce_sum", NULL, 0},
    {"not a window: summed over channels", "double[B, T, H, 4] x, double[H, 1, 2] w", PADDED "u = kv.concat <axis = 4> (" STACK(0) ", " STACK(1) ")\ny = kv.reduce_sum <axes = [3], keepdims = false> (u * w)", "reduce_sum", NULL, 0},
    {"convolution, padded and cropped", "double[B, 6, T] x, double[6, 1, 4] w", "c = kv.conv <group = 6, pads = [3, 3], strides = [1], dilations = [1]> (x, w)\ny = kv.slice <starts = [0, 0, 0], shape = [B, 6, T]> (c)", "kv_shift !conv", "time_axis = 1", 0},
    {"convolution, padded before", "double[B, 6, T] x, double[6, 1, 3] w", "y = kv.conv <group = 6, pads = [0, 0], strides = [1], dilations = [1]> (kv.pad <before = [0, 0, 2], after = [0, 0, 0]> (x), w)", "kv_shift !conv !pad", NULL, 0},
    {"convolution, padded on the left", "double[2, 6, 7] x, double[6, 1, 3] w", "y = kv.conv <group = 6, pads = [2, 0], strides = [1], dilations = [1]> (x, w)", "kv_shift !conv", NULL, 0},
    {"convolution with state", "double[B, 6, T] x, double[6, 1, 3] w, double[B, 6, 2] s", "y = kv.conv <group = 6, pads = [0, 0], strides = [1], dilations = [1]> (kv.concat <axis = 2> (s, x), w)", "kv_shift !conv !concat", NULL, 0},
    {"convolution between transposes", "double[B, T, 6] x, double[6, 1, 4] w", "c = kv.conv <group = 6, pads = [3, 3], strides = [1], dilations = [1]> (kv.transpose <perm = [0, 2, 1]> (x), w)\ny = kv.transpose <perm = [0, 2, 1]> (kv.slice <starts = [0, 0, 0], shape = [B, 6, T]> (c))", "kv_shift !conv transpose", NULL, 0},
    {"not causal: convolution padded alike", "double[B, 6, T] x, double[6, 1, 3] w", "y = kv.conv <group = 6, pads = [1, 1], strides = [1], dilations = [1]> (x, w)", "!kv_shift conv", NULL, 0},
    {"not causal: cropped in the middle", "double[B, 6, T] x, double[6, 1, 3] w", "c = kv.conv <group = 6, pads = [2, 2], strides = [1], dilations = [1]> (x, w)\ny = kv.slice <starts = [0, 0, 1], shape = [B, 6, T]> (c)", "!kv_shift conv", NULL, 0},
    {"not depthwise", "double[B, 6, T] x, double[6, 2, 3] w", "y = kv.conv <group = 3, pads = [2, 0], strides = [1], dilations = [1]> (x, w)", "!kv_shift conv", NULL, 0},
    {"not a shift: dilated", "double[B, 6, T] x, double[6, 1, 2] w", "y = kv.conv <group = 6, pads = [2, 0], strides = [1], dilations = [2]> (x, w)", "!kv_shift conv", NULL, 0},
    {0},
};

int main(void) {
  const struct CMUnitTest tests[] = {RAISE_TEST(moves), RAISE_TEST(mixes), RAISE_TEST(windows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
