"""Operators of ai.onnx.ml, and TfIdfVectorizer."""
import numpy
import onnx.numpy_helper

from random_nodes import Node, generator


def ml(op, operands, attributes, opset=3, **more):
    return Node(op, operands, attributes, opset=opset, domain="ai.onnx.ml", **more)


def numbers(r, n, low=-2, high=2):
    return [float(v) for v in r.floats([n], low, high)]


def rows(r, width, dtypes=("float32",)):
    return r.tensor([r.int(1, 5), width], r.pick(*dtypes), -4, 4)


@generator("ArrayFeatureExtractor")
def array_feature_extractor(r):
    shape = r.shape(1, 3)
    x = r.tensor(shape, r.pick("float32", "float64", "int64", "int32"))
    if x.ndim == 1:
        x = x[None]  # ONNX Runtime and the standard differ on the shape of the result
    return ml("ArrayFeatureExtractor", [x, r.ints([r.int(1, 4)], 0, x.shape[-1] - 1)], {}, opset=1)


@generator("Binarizer")
def binarizer(r):
    attributes = {"threshold": r.pick(0.0, 0.5, -1.0)} if r.chance(0.8) else {}
    return ml("Binarizer", [r.floats(r.shape(1, 3))], attributes, opset=1)


@generator("FeatureVectorizer")
def feature_vectorizer(r):
    widths, n = [r.int(1, 4) for _ in range(r.int(1, 4))], r.int(1, 4)
    t = r.pick("float32", "float64", "int64", "int32")
    return ml("FeatureVectorizer", [r.tensor([n, w], t) for w in widths], {"inputdimensions": widths}, opset=1)


@generator("Imputer")
def imputer(r):
    width = r.int(1, 4)
    x = rows(r, width, ("float32", "int64"))
    some = r.pick(1, width)
    if x.dtype == "int64":
        attributes = {"imputed_value_int64s": r.ints([some], -9, 9).tolist(), "replaced_value_int64": r.int(-1, 1)}
    else:
        attributes = {"imputed_value_floats": numbers(r, some)}
        attributes["replaced_value_float"] = r.pick(float("nan"), 1.0)
        x[r.random.random(x.shape) < 0.3] = attributes["replaced_value_float"]
    return ml("Imputer", [x], attributes, opset=1)


@generator("LabelEncoder")
def label_encoder(r):
    opset = r.pick(2, 4)
    n = r.int(1, 5)
    kinds = {"float": "floats", "int64": "int64s"}
    source, target = r.pick(*kinds), r.pick(*kinds)
    keys = r.random.permutation(9)[:n] - 4
    values = r.ints([n], -9, 9)
    attributes = {}
    of = {"float": float, "int64": int}
    attributes["keys_" + kinds[source]] = [of[source](k) for k in keys]
    attributes["values_" + kinds[target]] = [of[target](v) for v in values]
    if r.chance():
        attributes["default_" + target] = of[target](7)
    x = r.ints(r.shape(1, 3), -5, 5, "float32" if source == "float" else "int64")
    return ml("LabelEncoder", [x], attributes, opset=opset)


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@generator("LinearClassifier")
def linear_classifier(r):
    classes, width = r.int(2, 4), r.int(1, 4)
    single = r.chance(0.2)
    scores = 1 if single else classes
    if single:
        classes = 2
    labels = (r.random.permutation(9)[:classes] - 4).tolist()
    attributes = {"coefficients": numbers(r, scores * width), "classlabels_ints": labels}
    attributes["intercepts"] = numbers(r, scores)
    if single or r.chance(0.7):
        attributes["post_transform"] = "LOGISTIC" if single else r.pick(*TRANSFORMS[:4])
    if r.chance(0.3):
        attributes["multi_class"] = r.int(0, 1)
    return ml("LinearClassifier", [rows(r, width, ("float32", "float64", "int64"))], attributes, opset=1, outputs=2,
              units=256)


@generator("LinearRegressor")
def linear_regressor(r):
    targets, width = r.int(1, 3), r.int(1, 5)
    attributes = {"coefficients": numbers(r, targets * width), "targets": targets}
    if r.chance(0.7):
        attributes["intercepts"] = numbers(r, targets)
    if targets > 1 and r.chance():  # ONNX Runtime does not transform a single score
        attributes["post_transform"] = r.pick(*TRANSFORMS[:4])
    return ml("LinearRegressor", [rows(r, width)], attributes, opset=1, units=256)


@generator("Normalizer")
def normalizer(r):
    x = rows(r, r.int(1, 5), ("float32", "float64", "int64", "int32"))
    if r.chance(0.3):
        x[0] = 0
    norm = r.pick("MAX", "L1", "L2")
    if norm == "MAX":
        x = abs(x)  # ONNX Runtime takes the largest element, the standard's evaluator the largest magnitude
    return ml("Normalizer", [x], {"norm": norm}, opset=1)


@generator("OneHotEncoder")
def one_hot_encoder(r):
    x = r.ints(r.shape(1, 3), 0, 6, r.pick("int64", "float32", "int32", "float64"))
    return ml("OneHotEncoder", [x], {"cats_int64s": list(range(7)) if r.chance() else [1, 5, 3], "zeros": 1}, opset=1)


@generator("Scaler")
def scaler(r):
    width = r.int(1, 4)
    n = r.pick(1, width)
    attributes = {"offset": numbers(r, n), "scale": numbers(r, n)}
    return ml("Scaler", [rows(r, width, ("float32", "float64", "int64", "int32"))], attributes, opset=1)


def kernel(r, attributes):
    attributes["kernel_type"] = r.pick("LINEAR", "POLY", "RBF", "SIGMOID")
    attributes["kernel_params"] = [float(r.pick(0.1, 0.5)), float(r.pick(0, 0.5)), float(r.pick(1, 2, 3))]


@generator("SVMRegressor")
def svm_regressor(r):
    width, n = r.int(1, 4), r.int(1, 4)
    attributes = {"n_supports": n, "support_vectors": numbers(r, n * width), "coefficients": numbers(r, n),
                  "rho": numbers(r, 1)}
    kernel(r, attributes)
    if r.chance(0.2):
        attributes["one_class"] = 1
    return ml("SVMRegressor", [rows(r, width)], attributes, opset=1, units=512)


@generator("SVMClassifier")
def svm_classifier(r):
    """With labels of a single class the result has no defined form."""
    classes, width = r.int(2, 4), r.int(1, 4)
    per_class = [r.int(1, 3) for _ in range(classes)]
    n, pairs = sum(per_class), classes * (classes - 1) // 2
    attributes = {"classlabels_ints": list(range(classes)), "vectors_per_class": per_class,
                  "support_vectors": numbers(r, n * width), "coefficients": numbers(r, n * (classes - 1)),
                  "rho": numbers(r, pairs)}
    kernel(r, attributes)
    if r.chance():
        attributes["prob_a"], attributes["prob_b"] = numbers(r, pairs, -1, 0), numbers(r, pairs, -1, 1)
    if r.chance(0.3):
        attributes["post_transform"] = r.pick(*TRANSFORMS[:4])
    return ml("SVMClassifier", [rows(r, width)], attributes, opset=1, outputs=2, units=1024)


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def grow(r, width, depth, modes):
    """A tree: (feature, mode, threshold, nan goes true, true, false), or None, a leaf. Thresholds are quarters."""
    if depth == 0 or r.chance(0.2):
        return None
    node = (r.int(0, width - 1), r.pick(*modes), r.int(-8, 8) / 4, r.int(0, 1))
    return *node, grow(r, width, depth - 1, modes), grow(r, width, depth - 1, modes)


def features(r, width):
    x = numpy.round(r.floats([r.int(1, 6), width], -3, 3) * 4) / 4
    if r.chance(0.3):
        x[r.random.random(x.shape) < 0.2] = numpy.nan
    return x.astype("float32")


def spread(trees, nodes):
    """Fills the attributes nodes_*; yields (tree, node) of the leaves."""
    leaves = []
    for t, tree in enumerate(trees):
        count = 0

        def walk(node):
            nonlocal count
            own, count = count, count + 1
            nodes["nodes_treeids"].append(t)
            nodes["nodes_nodeids"].append(own)
            at = len(nodes["nodes_featureids"])
            feature, mode, threshold, nan, *_ = node or (0, "LEAF", 0.0, 0)
            nodes["nodes_featureids"].append(feature)
            nodes["nodes_modes"].append(mode)
            nodes["nodes_values"].append(threshold)
            nodes["nodes_missing_value_tracks_true"].append(nan)
            nodes["nodes_truenodeids"].append(0)
            nodes["nodes_falsenodeids"].append(0)
            if not node:
                leaves.append((t, own))
                return own
            nodes["nodes_truenodeids"][at] = walk(node[4])
            nodes["nodes_falsenodeids"][at] = walk(node[5])
            return own
        walk(tree)
    return leaves


NODE_LISTS = ("treeids", "nodeids", "featureids", "modes", "values", "missing_value_tracks_true", "truenodeids",
              "falsenodeids")


def forest(r):
    width = r.int(1, 4)
    modes = r.pick(MODES, ("BRANCH_LEQ",), ("BRANCH_LT",), ("BRANCH_EQ",))
    return width, [grow(r, width, r.int(0, 3), modes) for _ in range(r.int(1, 4))]


def node_lists(r, trees):
    nodes = {f"nodes_{name}": [] for name in NODE_LISTS}
    leaves = spread(trees, nodes)
    if r.chance(0.3):
        del nodes["nodes_missing_value_tracks_true"]
    return nodes, leaves


@generator("TreeEnsembleRegressor")
def tree_regressor(r):
    """Every leaf has all targets: where a row meets none, peers disagree on base values. ONNX Runtime does not
    transform a single score."""
    width, trees = forest(r)
    attributes, leaves = node_lists(r, trees)
    targets = r.int(1, 3)
    weights = [(t, n, k, w) for t, n in leaves
               for k, w in zip(r.random.permutation(targets).tolist(), numbers(r, targets))]
    for name, i in (("treeids", 0), ("nodeids", 1), ("ids", 2), ("weights", 3)):
        attributes["target_" + name] = [w[i] for w in weights]
    attributes["n_targets"] = targets
    if r.chance(0.6):
        attributes["aggregate_function"] = r.pick("SUM", "SUM", "AVERAGE", "MIN", "MAX")
    if r.chance(0.3):
        attributes["base_values"] = numbers(r, targets)
    if targets > 1 and r.chance(0.4):
        attributes["post_transform"] = r.pick(*TRANSFORMS[:4])
    return ml("TreeEnsembleRegressor", [features(r, width)], attributes, opset=r.pick(1, 3), outputs=1, units=256)


@generator("TreeEnsembleClassifier")
def tree_classifier(r):
    """Of two classes with weights for both, ONNX Runtime returns 0 and 1 instead of the labels, and of more
    it does not see those that no leaf of a row has. Weights of one class are of both signs, or make a probability: else
    the labels are not those of the higher score."""
    width, trees = forest(r)
    attributes, leaves = node_lists(r, trees)
    binary = r.chance(0.3)
    classes = 2 if binary else r.int(3, 4)
    negative = not binary or r.chance()
    weights = []
    for t, n in leaves:
        ids = [0] if binary else r.random.permutation(classes).tolist()
        weights += [(t, n, k, w) for k, w in zip(ids, numbers(r, classes, -1 if negative else 0, 1))]
    if binary and negative:
        weights[0] = (*weights[0][:3], -0.5)
    for name, i in (("treeids", 0), ("nodeids", 1), ("ids", 2), ("weights", 3)):
        attributes["class_" + name] = [w[i] for w in weights]
    attributes["classlabels_int64s"] = (r.random.permutation(9)[:classes] - 2).tolist()
    if r.chance(0.3):
        attributes["base_values"] = numbers(r, 1 if binary else classes)
    if r.chance(0.4):
        attributes["post_transform"] = r.pick(*TRANSFORMS[:4]) if not binary else "LOGISTIC" if negative else "NONE"
    return ml("TreeEnsembleClassifier", [features(r, width)], attributes, opset=r.pick(1, 3), outputs=2, units=256)


@generator("TreeEnsemble")
def tree_ensemble(r):
    """Version 5: inner nodes and leaves apart. A tree of a single leaf is a node whose branches are that leaf. ONNX
    Runtime has SOFTMAX and LOGISTIC exchanged."""
    width, trees = forest(r)
    t = r.pick("float32", "float32", "float64")
    nodes, weights, roots, targets = [], [], [], r.int(1, 3)

    def walk(node):
        """(position, whether it is a leaf)"""
        if not node:
            weights.append((r.int(0, targets - 1), float(r.floats([], -2, 2))))
            return len(weights) - 1, 1
        at = len(nodes)
        nodes.append(None)
        true, false = walk(node[4]), walk(node[5])
        nodes[at] = (*node[:4], *true, *false)
        return at, 0
    for tree in trees:
        at = len(nodes)
        if not tree:
            leaf, _ = walk(None)
            nodes.append((0, "BRANCH_LEQ", 0.0, 0, leaf, 1, leaf, 1))
        else:
            walk(tree)
        roots.append(at)
    of = lambda i: [n[i] for n in nodes]  # noqa: E731
    tensor = lambda values, dtype: onnx.numpy_helper.from_array(numpy.array(values, dtype))  # noqa: E731
    attributes = {"tree_roots": roots, "n_targets": targets, "nodes_featureids": of(0),
                  "nodes_modes": tensor([MODES.index(m) for m in of(1)], "uint8"), "nodes_splits": tensor(of(2), t),
                  "nodes_truenodeids": of(4), "nodes_trueleafs": of(5), "nodes_falsenodeids": of(6),
                  "nodes_falseleafs": of(7), "leaf_targetids": [w[0] for w in weights],
                  "leaf_weights": tensor([w[1] for w in weights], t)}
    if r.chance():
        attributes["nodes_missing_value_tracks_true"] = of(3)
    if r.chance(0.6):
        attributes["aggregate_function"] = r.int(0, 3)
    if targets > 1 and r.chance(0.4):
        attributes["post_transform"] = r.pick(0, 3)
    return ml("TreeEnsemble", [features(r, width).astype(t)], attributes, opset=5,
              units=2.0**31 if t == "float64" else 256)


@generator("TfIdfVectorizer")
def tfidf(r):
    pool, counts = [], []
    for n in range(1, r.int(2, 3) + 1):
        counts.append(len(pool))
        grams = {tuple(r.ints([n], 0, 4).tolist()) for _ in range(r.int(1, 4))}
        pool += [v for gram in sorted(grams) for v in gram]
    ends = counts[1:] + [len(pool)]
    grams = sum((end - begin) // (n + 1) for n, (begin, end) in enumerate(zip(counts, ends)))
    low = r.int(1, len(counts))
    attributes = {"mode": r.pick("TF", "IDF", "TFIDF"), "min_gram_length": low,
                  "max_gram_length": r.int(low, len(counts)), "max_skip_count": r.int(0, 3), "pool_int64s": pool,
                  "ngram_counts": counts, "ngram_indexes": r.random.permutation(grams).tolist()}
    if r.chance():
        attributes["weights"] = numbers(r, grams, 0.5, 2)
    x = r.ints([r.int(1, 9)] if r.chance() else [r.int(1, 3), r.int(1, 9)], 0, 5, r.pick("int32", "int64"))
    return Node("TfIdfVectorizer", [x], attributes, opset=9)
