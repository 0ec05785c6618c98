/* Attention, rotary embedding and cross-entropy from their spellings; and near misses. */
#include "tests/passes/raise_case.h"

#define QKV    "double[B, H, T, 4] q, double[B, H, S, 4] k, double[B, H, S, 4] v"
#define SELF   "double[B, H, T, 4] q, double[B, H, T, 4] k, double[B, H, T, 4] v"
#define FIXED  "double[2, 3, 5, 4] q, double[2, 3, 5, 4] k, double[2, 3, 5, 4] v"
#define KT     "kv.transpose <perm = [0, 1, 3, 2]> (k)"
#define OUT    "\ny = kv.softmax <axis = -1> (a) @ v"
#define RAISED "attention !softmax !matmul"
#define ROWS   "t = kv.iota <shape = [T, 1], axis = 0> ()\ns = kv.iota <shape = [1, T], axis = 1> ()\n"
#define INF    "double {-inf}"
#define TRIL5  "bool[5, 5] {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1}"
#define BAND5  "bool[5, 5] {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1}"
#define ODD5   "bool[5, 5] {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1}"

static const raise_case attention[] = {
    {"plain", QKV, "a = (q @ " KT ") * 0.5" OUT, RAISED " !mul", NULL, 0},
    {"divided", QKV, "a = (q @ " KT ") / 2" OUT, RAISED " !div", NULL, 0},
    {"unscaled", QKV, "a = q @ " KT OUT, RAISED, "scale = 1", 0},
    {"other scale", QKV, "a = q @ " KT " * 0.3" OUT, RAISED, "scale = 0.3", 0},
    {"split scale", QKV, "a = (q * 0.7071067811865476) @ kv.transpose <perm = [0, 1, 3, 2]> (0.7071067811865476 * k)" OUT, RAISED " !mul", NULL, 0},
    {"keys stored by columns", "double[B, H, T, 4] q, double[B, H, 4, S] k, double[B, H, S, 4] v", "a = (q @ k) * 0.5" OUT, RAISED " transpose", NULL, 0},
    {"keys stored by rows and heads", "double[B, H, T, 4] q, double[B, S, H, 4] k, double[B, H, S, 4] v", "a = (q @ kv.transpose <perm = [0, 2, 3, 1]> (k)) * 0.5" OUT, RAISED " transpose", NULL, 0},
    {"rank 3", "double[B, T, 4] q, double[B, S, 4] k, double[B, S, 3] v, double[B, T, S] m", "a = (q @ kv.transpose <perm = [0, 2, 1]> (k)) / 2 + m" OUT, RAISED, NULL, 0},
    {"rank 2", "double[T, 4] q, double[S, 4] k, double[S, 3] v", "a = (q @ kv.transpose <perm = [1, 0]> (k)) / 2" OUT, RAISED, NULL, 0},
    {"in float for half", "float16[B, H, T, 4] q, float16[B, H, S, 4] k, float16[B, H, S, 4] v", "a = kv.cast <to = float> ((q @ " KT ") * 0.5)\ny = kv.cast <to = float16> (kv.softmax <axis = -1> (a)) @ v", RAISED " !cast", NULL, 5e-3},
    {"values in float for half", "float16[B, H, T, 4] q, float16[B, H, S, 4] k, float16[B, H, S, 4] v", "a = kv.cast <to = float> (q @ " KT ") * 0.5\ny = kv.cast <to = float16> (kv.softmax <axis = -1> (a) @ kv.cast <to = float> (v))", RAISED " !cast", NULL, 5e-3},
    {"soft cap", QKV, "a = 5.0 * kv.tanh((q @ " KT ") * 0.5 / 5.0)" OUT, RAISED " !tanh !mul", "softcap = 5", 0},
    {"soft cap and mask", QKV ", double[T, S] m", "a = kv.tanh((q @ " KT ") * 0.1) * 5.0 + m" OUT, RAISED " !tanh !add", "softcap = 5", 0},
    {"added mask", QKV ", double[B, 1, T, S] m", "a = (q @ " KT ") * 0.5 + m" OUT, RAISED " !add", NULL, 0},
    {"added mask inside the scale", QKV ", double[T, S] m", "a = ((q @ " KT ") + m) * 0.5" OUT, RAISED " !add mul", NULL, 0},
    {"two masks", QKV ", double[B, 1, 1, S] m, double[H, T, S] n", "a = m + (n + (q @ " KT ") * 0.5)" OUT, RAISED " add", NULL, 0},
    {"bool mask", QKV ", bool[B, 1, T, S] m", "a = kv.where(kv.logical_or(m, kv.iota <shape = [S], axis = 0> () < 1), (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " !where", NULL, 0},
    {"bool mask of what is hidden", QKV ", bool[B, 1, T, S] m", "a = kv.where(kv.logical_and(m, kv.iota <shape = [S], axis = 0> () > 0), " INF ", (q @ " KT ") * 0.5)" OUT, RAISED " !where logical_not", NULL, 0},
    {"bool mask with a finite score", QKV ", bool[B, 1, T, S] m", "a = kv.where(m, (q @ " KT ") * 0.5, double {-1e30})" OUT, RAISED " where", NULL, 0},
    {"padding as a product", QKV ", double[B, 1, 1, S] m", "a = (q @ " KT ") * 0.5 + (1.0 - m) * -10000.0" OUT, RAISED, NULL, 0},
    {"probabilities of another axis", "double[B, H, T, 4] q, double[B, H, T, 4] k, double[B, H, T, 4] v", "a = q @ " KT "\ny = kv.softmax <axis = 2> (a) @ v", "!attention softmax", NULL, 0},
    {"probabilities used twice", QKV, "p = kv.softmax <axis = -1> (q @ " KT ")\ny = (p @ v) * kv.reduce_max <axes = [3]> (p)", "!attention softmax", NULL, 0},
    {"scores used twice", QKV, "a = (q @ " KT ") * 0.5\ny = (kv.softmax <axis = -1> (a) @ v) * kv.reduce_max <axes = [3]> (a)", "!attention softmax", NULL, 0},
    {"mask inside the cap", QKV ", double[T, S] m", "a = 5.0 * kv.tanh(((q @ " KT ") + m) / 5.0)" OUT, "!attention", NULL, 0},
    {"cap and factor differ", QKV, "a = 4.0 * kv.tanh((q @ " KT ") / 5.0)" OUT, RAISED, "softcap = 4", 0},
    {"mask that hides little", QKV ", bool[T, S] m", "a = kv.where(m, (q @ " KT ") * 0.5, double {-100.0})" OUT, "!attention", NULL, 0},
    {0},
};

static const raise_case causal[] = {
    {"constant mask", FIXED, "a = kv.where(" TRIL5 ", (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " !where", "causal = true", 0},
    {"constant added mask", FIXED, "a = (q @ " KT ") * 0.5 + kv.where(" TRIL5 ", double {0.0}, double {-1e9})" OUT, RAISED " !add", "causal = true", 0},
    {"constant mask of what is hidden", FIXED, "a = kv.where(kv.logical_not(" TRIL5 "), double {-1e30}, (q @ " KT ") * 0.5)" OUT, RAISED " !where", "causal = true", 0},
    {"constant band", FIXED, "a = kv.where(" BAND5 ", (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " !where", "causal = true, window = 2", 0},
    {"not a band", FIXED, "a = kv.where(" ODD5 ", (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " constant", NULL, 0},
    {"not causal: transposed", FIXED, "a = kv.where(kv.transpose <perm = [1, 0]> (" TRIL5 "), (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " constant", NULL, 0},
    {"not causal: strictly lower", FIXED, "a = kv.where(kv.slice <starts = [0, 1], shape = [5, 4]> (kv.concat <axis = 1> (" TRIL5 ", bool[5, 1] {0, 0, 0, 0, 0})), kv.slice <starts = [0, 0, 0, 1], shape = [2, 3, 5, 4]> (q @ " KT "), double {-1e30})\ny = kv.softmax <axis = -1> (a) @ kv.slice <starts = [0, 0, 1, 0], shape = [2, 3, 4, 4]> (v)", "!attention", NULL, 0},
    {"compared positions", SELF, ROWS "a = kv.where(s <= t, (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " !where !iota", "causal = true", 0},
    {"compared positions, later hidden", SELF, ROWS "a = kv.where(kv.reshape <shape = [1, 1, T, T]> (s > t), double {-1e30}, (q @ " KT ") * 0.5)" OUT, RAISED " !where !iota", "causal = true", 0},
    {"added upper triangle", SELF, ROWS "a = (q @ " KT ") * 0.5 + kv.where(s < t + 1, double {0.0}, kv.expand <shape = [T, T]> (" INF "))" OUT, RAISED " !where !iota", "causal = true", 0},
    {"one minus mask", SELF, ROWS "m = kv.cast <to = double> (s <= t)\na = (q @ " KT ") * 0.5 + (1.0 - m) * -1e9" OUT, RAISED " !iota", "causal = true", 0},
    {"slice of a long constant", "double[2, 3, T, 4] q, double[2, 3, T, 4] k, double[2, 3, T, 4] v", "m = kv.slice <starts = [0, 0, 0, 0], shape = [1, 1, T, T]> (bool[1, 1, 6, 6] {1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1})\na = kv.where(m, (q @ " KT ") * 0.5, double {-1e30})" OUT, RAISED " !slice !where", "causal = true", 0},
    {"positions after a past", "double[B, H, T, 4] q, double[B, H, N + T, 4] k, double[B, H, N + T, 4] v", "t = kv.iota <shape = [T, 1], axis = 0> () + kv.dims <values = [N], scalar = true> ()\ns = kv.iota <shape = [1, N + T], axis = 1> ()\na = kv.where(s <= t, (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " !where !iota", "offset = N", 0},
    {"window", SELF, ROWS "a = kv.where(kv.logical_and(s <= t, t - s < 3), (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " !where !iota", "causal = true, window = 3", 0},
    {"window and padding", SELF ", bool[B, 1, 1, T] m", ROWS "c = kv.logical_and(kv.logical_and(s <= t, s > t - 3), kv.logical_or(m, s > -1))\na = kv.where(c, (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " !where", "causal = true, window = 3", 0},
    {"causal and added bias", SELF ", double[H, T, T] n", ROWS "a = (q @ " KT ") * 0.5 + (n + kv.where(s <= t, double {0.0}, " INF "))" OUT, RAISED " !where !add", "causal = true", 0},
    {"ALiBi", SELF, ROWS "h = double[4, 1, 1] {0.5, 0.25, 0.125, 0.0625}\na = (q @ " KT ") * 0.5 + kv.reshape <shape = [H, 1, 1]> (kv.expand <shape = [H]> (double {0.25})) * kv.cast <to = double> (s - t) + kv.where(s <= t, double {0.0}, " INF ")" OUT, RAISED " !add !where", "causal = true", 0},
    {"ALiBi by key position", "double[B, 4, T, 4] q, double[B, 4, N + T, 4] k, double[B, 4, N + T, 4] v, double[4] h", "t = kv.iota <shape = [T, 1], axis = 0> () + kv.dims <values = [N], scalar = true> ()\ns = kv.iota <shape = [1, N + T], axis = 1> ()\nz = kv.reshape <shape = [4, 1, 1]> (h) * kv.cast <to = double> (-s)\na = kv.where(s <= t, (q @ " KT ") * 0.5 + z, " INF ")" OUT, RAISED " !add !where !iota", "offset = N", 0},
    {"not ALiBi: without a causal mask", SELF ", double[H] h", ROWS "z = kv.reshape <shape = [H, 1, 1]> (h) * kv.cast <to = double> (s - t)\na = (q @ " KT ") * 0.5 + z" OUT, RAISED " iota*2", NULL, 0},
    {"not causal: one key ahead", SELF, ROWS "a = kv.where(s <= t + 1, (q @ " KT ") * 0.5, " INF ")" OUT, RAISED, "offset = 1", 0},
    {"not causal: the future", SELF, ROWS "a = kv.where(s >= t, (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " iota*2", NULL, 0},
    {"not causal: the key itself hidden", SELF, ROWS "a = kv.where(s < t, (q @ " KT ") * 0.5, double {-1e30})" OUT, RAISED " iota*2", NULL, 0},
    {"not causal: same for every query", "double[2, 3, 5, 4] q, double[2, 3, 5, 4] k, double[2, 3, 5, 4] v", "a = kv.where(bool[1, 5] {1, 1, 1, 0, 0}, (q @ " KT ") * 0.5, " INF ")" OUT, RAISED " constant", NULL, 0},
    {0},
};

#define GROUPED "double[B, 6, T, 4] q, double[B, 2, T, 4] k, double[B, 2, T, 4] v"
#define REPEAT(x) "kv.reshape <shape = [B, 6, T, 4]> (kv.expand <shape = [B, 2, 3, T, 4]> (kv.reshape <shape = [B, 2, 1, T, 4]> (" #x ")))"
#define TILE(x) "kv.reshape <shape = [B, 6, T, 4]> (kv.expand <shape = [B, 3, 2, T, 4]> (kv.reshape <shape = [B, 1, 2, T, 4]> (" #x ")))"

static const raise_case grouped[] = {
    {"expanded heads", GROUPED, "k2 = " REPEAT(k) "\na = (q @ kv.transpose <perm = [0, 1, 3, 2]> (k2)) * 0.5\ny = kv.softmax <axis = -1> (a) @ " REPEAT(v), RAISED " !expand !reshape", NULL, 0},
    {"gathered heads", GROUPED, "i = int64[6] {0, 0, 0, 1, 1, 1}\nk2 = kv.gather <axis = 1> (k, i)\na = (q @ kv.transpose <perm = [0, 1, 3, 2]> (k2)) * 0.5\ny = kv.softmax <axis = -1> (a) @ kv.gather <axis = 1> (v, i)", RAISED " !gather", NULL, 0},
    {"expanded before the transpose", "double[B, T, 6, 4] q, double[B, T, 2, 4] k, double[B, T, 2, 4] v",
     "k2 = kv.reshape <shape = [B, T, 6, 4]> (kv.expand <shape = [B, T, 2, 3, 4]> (kv.reshape <shape = [B, T, 2, 1, 4]> (k)))\n"
     "v2 = kv.reshape <shape = [B, T, 6, 4]> (kv.expand <shape = [B, T, 2, 3, 4]> (kv.reshape <shape = [B, T, 2, 1, 4]> (v)))\n"
     "a = (kv.transpose <perm = [0, 2, 1, 3]> (q) @ kv.transpose <perm = [0, 2, 3, 1]> (k2)) * 0.5\n"
     "y = kv.softmax <axis = -1> (a) @ kv.transpose <perm = [0, 2, 1, 3]> (v2)", RAISED " !expand !reshape", NULL, 0},
    {"heads in turn are no groups", GROUPED, "k2 = " TILE(k) "\na = (q @ kv.transpose <perm = [0, 1, 3, 2]> (k2)) * 0.5\ny = kv.softmax <axis = -1> (a) @ " TILE(v), RAISED " expand*2", NULL, 0},
    {"heads gathered in turn", GROUPED, "i = int64[6] {0, 1, 0, 1, 0, 1}\nk2 = kv.gather <axis = 1> (k, i)\na = (q @ kv.transpose <perm = [0, 1, 3, 2]> (k2)) * 0.5\ny = kv.softmax <axis = -1> (a) @ kv.gather <axis = 1> (v, i)", RAISED " gather*2", NULL, 0},
    {0},
};

#define LOW(x)  "kv.slice <starts = [0, 0, 0, 0], shape = [B, H, T, 4]> (" #x ")"
#define HIGH(x) "kv.slice <starts = [0, 0, 0, 4], shape = [B, H, T, 4]> (" #x ")"
#define EVEN(x) "kv.slice <starts = [0, 0, 0, 0], shape = [B, H, T, 4], steps = [1, 1, 1, 2]> (" #x ")"
#define ODD(x)  "kv.slice <starts = [0, 0, 0, 1], shape = [B, H, T, 4], steps = [1, 1, 1, 2]> (" #x ")"
#define PAIR(x) "kv.reshape <shape = [B, H, T, 4, 1]> (" x ")"
#define XA      "double[B, H, T, 8] x, double[T, 4] g"
#define TABLES  "f = kv.concat <axis = 1> (g, g)\nc = kv.cos(f)\ns = kv.sin(f)\n"

static const raise_case rope[] = {
    {"halves", XA, TABLES "r = kv.concat <axis = 3> (-" HIGH(x) ", " LOW(x) ")\ny = x * c + r * s", "rope !concat*0 !neg", NULL, 0},
    {"halves, other order", XA, TABLES "r = kv.concat <axis = -1> (-" HIGH(x) ", " LOW(x) ")\ny = s * r + c * x", "rope !neg", NULL, 0},
    {"tables with heads", "double[B, H, T, 8] x, double[B, T, 4] g", "f = kv.concat <axis = 2> (g, g)\nc = kv.reshape <shape = [B, 1, T, 8]> (kv.cos(f) * 1.5)\ns = kv.reshape <shape = [B, 1, T, 8]> (kv.sin(f) * 1.5)\nr = kv.concat <axis = 3> (-" HIGH(x) ", " LOW(x) ")\ny = x * c + r * s", "rope !neg", NULL, 0},
    {"constant tables", "double[2, 3, 2, 4] x", "c = double[2, 4] {1.0, 0.5, 1.0, 0.5, 0.25, 0.125, 0.25, 0.125}\ns = double[2, 4] {0.0, 0.5, 0.0, 0.5, 0.75, 1.0, 0.75, 1.0}\nr = kv.concat <axis = 3> (-kv.slice <starts = [0, 0, 0, 2], shape = [2, 3, 2, 2]> (x), kv.slice <starts = [0, 0, 0, 0], shape = [2, 3, 2, 2]> (x))\ny = x * c + r * s", "rope !neg !concat", NULL, 0},
    {"gathered tables", "double[B, H, T, 4] x, int64[B, T] p", "c = kv.gather <axis = 0> (double[3, 4] {1.0, 0.5, 1.0, 0.5, 0.25, 0.125, 0.25, 0.125, 0.5, 0.75, 0.5, 0.75}, p)\ns = kv.gather <axis = 0> (double[3, 4] {0.0, 0.5, 0.0, 0.5, 0.75, 1.0, 0.75, 1.0, 0.5, 0.25, 0.5, 0.25}, p)\nr = kv.concat <axis = 3> (-kv.slice <starts = [0, 0, 0, 2], shape = [B, H, T, 2]> (x), kv.slice <starts = [0, 0, 0, 0], shape = [B, H, T, 2]> (x))\ny = x * kv.reshape <shape = [B, 1, T, 4]> (c) + r * kv.reshape <shape = [B, 1, T, 4]> (s)", "rope !neg !concat", NULL, 0},
    {"joined halves", XA, "c = kv.cos(g)\ns = kv.sin(g)\ny = kv.concat <axis = 3> (" LOW(x) " * c - " HIGH(x) " * s, " HIGH(x) " * c + " LOW(x) " * s)", "rope !concat", NULL, 0},
    {"joined pairs", XA, "c = kv.cos(g)\ns = kv.sin(g)\na = " EVEN(x) " * c - " ODD(x) " * s\nb = " ODD(x) " * c + " EVEN(x) " * s\ny = kv.reshape <shape = [B, H, T, 8]> (kv.concat <axis = 4> (" PAIR("a") ", " PAIR("b") "))", "rope !concat", "interleaved = true", 0},
    {"joined unstacked pairs", XA, "c = kv.cos(g)\ns = kv.sin(g)\nu = kv.reshape <shape = [B, H, T, 4, 2]> (x)\ne = kv.reshape <shape = [B, H, T, 4]> (kv.slice <starts = [0, 0, 0, 0, 0], shape = [B, H, T, 4, 1]> (u))\no = kv.reshape <shape = [B, H, T, 4]> (kv.slice <starts = [0, 0, 0, 0, 1], shape = [B, H, T, 4, 1]> (u))\ny = kv.reshape <shape = [B, H, T, 8]> (kv.concat <axis = 4> (" PAIR("e * c - o * s") ", " PAIR("o * c + e * s") "))", "rope !concat", "interleaved = true", 0},
    {"turned pairs", XA, "f = kv.reshape <shape = [T, 8]> (kv.expand <shape = [T, 4, 2]> (kv.reshape <shape = [T, 4, 1]> (g)))\nr = kv.reshape <shape = [B, H, T, 8]> (kv.concat <axis = 4> (" PAIR("-" ODD(x)) ", " PAIR(EVEN(x)) "))\ny = x * kv.cos(f) + r * kv.sin(f)", "rope !concat", "interleaved = true", 0},
    {"first channels only", "double[B, H, T, 10] x, double[T, 4] g", TABLES "z = kv.slice <starts = [0, 0, 0, 0], shape = [B, H, T, 8]> (x)\nr = kv.concat <axis = 3> (-" HIGH(z) ", " LOW(z) ")\ny = kv.concat <axis = 3> (z * c + r * s, kv.slice <starts = [0, 0, 0, 8], shape = [B, H, T, 2]> (x))", "rope !neg !concat !slice", NULL, 0},
    {"not a rotation: sign", XA, TABLES "r = kv.concat <axis = 3> (" HIGH(x) ", -" LOW(x) ")\ny = x * c + r * s", "!rope", NULL, 0},
    {"not a rotation: halves in place", XA, TABLES "r = kv.concat <axis = 3> (-" LOW(x) ", " HIGH(x) ")\ny = x * c + r * s", "!rope", NULL, 0},
    {"not a rotation: other tensor", XA ", double[B, H, T, 8] z", TABLES "r = kv.concat <axis = 3> (-" HIGH(x) ", " LOW(x) ")\ny = z * c + r * s", "!rope", NULL, 0},
    {"not proven: table of its own", "double[B, H, T, 8] x, double[T, 8] c, double[T, 8] s", "r = kv.concat <axis = 3> (-" HIGH(x) ", " LOW(x) ")\ny = x * c + r * s", "!rope", NULL, 0},
    {"not equal: constant tables", "double[2, 3, 1, 4] x", "c = double[1, 4] {1.0, 0.5, 1.0, 0.25}\ns = double[1, 4] {0.0, 0.5, 0.0, 0.5}\nr = kv.concat <axis = 3> (-kv.slice <starts = [0, 0, 0, 2], shape = [2, 3, 1, 2]> (x), kv.slice <starts = [0, 0, 0, 0], shape = [2, 3, 1, 2]> (x))\ny = x * c + r * s", "!rope", NULL, 0},
    {"not equal: pairs in a table of halves", XA, "f = kv.reshape <shape = [T, 8]> (kv.expand <shape = [T, 4, 2]> (kv.reshape <shape = [T, 4, 1]> (g)))\nr = kv.concat <axis = 3> (-" HIGH(x) ", " LOW(x) ")\ny = x * kv.cos(f) + r * kv.sin(f)", "!rope", NULL, 0},
    {0},
};

#define LOGITS "double[B, T, C] x, int64[B, T] t"
#define COLUMN "c = kv.reshape <shape = [B, T, 1]> (t)\n"

static const raise_case losses[] = {
    {"gathered", LOGITS, COLUMN "p = kv.gather_elements <axis = 2> (kv.log_softmax <axis = -1> (x), c)\ny = -kv.reshape <shape = [B, T]> (p)", "cross_entropy !log_softmax !gather_elements", NULL, 0},
    {"gathered, mean first", LOGITS, COLUMN "p = kv.gather_elements <axis = 2> (kv.log_softmax <axis = -1> (x), c)\ny = -kv.reduce_mean(p)", "cross_entropy !log_softmax", NULL, 0},
    {"gathered, from the pieces", LOGITS, COLUMN "z = x - kv.reduce_max <axes = [2]> (x)\nl = z - kv.log(kv.reduce_sum <axes = [2]> (kv.exp(z)))\ny = -kv.gather_elements <axis = 2> (l, c)", "cross_entropy !log_softmax !exp", NULL, 0},
    {"gathered from the end", LOGITS, "c = kv.reshape <shape = [B, T, 1]> (t - 3)\ny = -kv.gather_elements <axis = 2> (kv.log_softmax <axis = -1> (x), c)", "cross_entropy !log_softmax", NULL, 0},
    {"one hot", LOGITS, COLUMN "h = kv.cast <to = double> (kv.equal(c, kv.iota <shape = [C], axis = 0> ()))\ny = -kv.reduce_sum <axes = [2], keepdims = false> (h * kv.log_softmax <axis = 2> (x))", "cross_entropy !log_softmax !reduce_sum", NULL, 0},
    {"one hot, selected", LOGITS, COLUMN "h = kv.equal(kv.iota <shape = [1, 1, C], axis = 2> (), c)\ny = -kv.reduce_sum <axes = [2], keepdims = false> (kv.where(h, kv.log_softmax <axis = 2> (x), double {0.0}))", "cross_entropy !log_softmax !reduce_sum", NULL, 0},
    {"one hot, target without a class", LOGITS, "c = kv.reshape <shape = [B, T, 1]> (t + 1)\nh = kv.cast <to = double> (kv.equal(c, kv.iota <shape = [C], axis = 0> ()))\ny = -kv.reduce_sum <axes = [2], keepdims = false> (h * kv.log_softmax <axis = 2> (x))", "cross_entropy !log_softmax !reduce_sum", NULL, 0},
    {"other axis", "double[B, C, T] x, int64[B, 1, T] t", "y = -kv.gather_elements <axis = 1> (kv.log_softmax <axis = 1> (x), t)", "!cross_entropy log_softmax", NULL, 0},
    {"softmax of another axis", "double[3, 3] x, int64[3, 1] t", "y = -kv.gather_elements <axis = 1> (kv.log_softmax <axis = 0> (x), t)", "!cross_entropy log_softmax", NULL, 0},
    {"log softmax is used", LOGITS, COLUMN "l = kv.log_softmax <axis = -1> (x)\ny = l - kv.gather_elements <axis = 2> (l, c)", "!cross_entropy log_softmax", NULL, 0},
    {"one hot of later classes", LOGITS, COLUMN "h = kv.cast <to = double> (kv.equal(c, kv.iota <shape = [C], axis = 0> () + 1))\ny = -kv.reduce_sum <axes = [2], keepdims = false> (h * kv.log_softmax <axis = 2> (x))", "!cross_entropy log_softmax", NULL, 0},
    {0},
};

/* Operators that attention and rope have no gradient for must not take in parameters that training changes. */
static uint32_t count_after_raise(const char *text, kva_op_id op) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "trained.kv", NULL, diag, &m);
  if (status == KVA_OK) status = kva_optimize(m, &(kva_pass_options){.verify = true});
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  uint32_t found = 0;
  for (uint32_t f = 0; f < m->functions.len; f++)
    for (const kva_node *n = m->functions.data[f]->graph->first; n; n = n->next) found += kva_is(n, op);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return found;
}

#define BIASED                                                                          \
  "model m (double[B, 2, 6, 4] q, double[B, 2, 6, 4] k) => (double[B, 2, 6, 4] y) {\n" \
  "  param double[6, 6] bias ~ normal(0.02)\n"                                          \
  "  a = (q @ " KT ") * 0.5 + kv.tanh(bias)\n"                                           \
  "  y = kv.softmax <axis = -1> (a) @ k\n"                                              \
  "}\n"
#define ROTATED                                                                                                   \
  "model m (double[B, 2, 6, 4] x) => (double[B, 2, 6, 4] y) {\n"                                                \
  "  param double[6, 2] angle ~ normal(0.02)\n"                                                                    \
  "  f = kv.concat <axis = 1> (angle, angle)\n"                                                                    \
  "  r = kv.concat <axis = 3> (-kv.slice <starts = [0, 0, 0, 2], shape = [B, 2, 6, 2]> (x), "                      \
  "kv.slice <starts = [0, 0, 0, 0], shape = [B, 2, 6, 2]> (x))\n"                                                  \
  "  y = x * kv.cos(f) + r * kv.sin(f)\n"                                                                          \
  "}\n"
#define TRAIN "train m {\n  loss = kv.reduce_sum <keepdims = false> (y)\n  optimizer = SGD <lr = 0.1>\n}\n"

static void trained_parameters_stay_outside(void **state) {
  (void)state;
  assert_int_equal(count_after_raise(BIASED, KVA_OP_attention), 1);
  assert_int_equal(count_after_raise(BIASED TRAIN, KVA_OP_attention), 0);
  assert_int_equal(count_after_raise(ROTATED, KVA_OP_rope), 1);
  assert_int_equal(count_after_raise(ROTATED TRAIN, KVA_OP_rope), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {RAISE_TEST(attention), RAISE_TEST(causal), RAISE_TEST(grouped), RAISE_TEST(rope), RAISE_TEST(losses),
                                     cmocka_unit_test(trained_parameters_stay_outside)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
