/* Types and tensor literals. */
#include "frontend/kv_elaborate.h"

#include <stdlib.h>

/* ---- dimensions -------------------------------------------------------------------------------------------------- */

static const char *pinned(const kva_elab *e, const char *name) {
  for (uint32_t i = 0; e->options && i < e->options->n_pins; i++) {
    if (!strcmp(e->options->pins[i].name, name)) return e->options->pins[i].value;
  }
  return NULL;
}

static kva_el_value new_symbol(kva_elab *e, const char *name) {
  const char *pin = pinned(e, name);
  kva_el_value v;
  if (pin)
    v = kva_el_int(e, strtoll(pin, NULL, 10)); /* validated by kva_el_check_pins */
  else
    v = kva_el_dim(e, kva_expr_symbol(e->m->exprs, kva_arena_strdup(e->m->arena, name)));
  kva_map_set_str(e->symbols, name, kva_arena_memdup(e->scratch, &v, sizeof v));
  return v;
}

/* A name in a dimension is a compile-time value, a known symbol, or else a new symbol. Tensors are ignored: in ONNX,
 * dimensions and values have separate name spaces. */
static kva_el_value name_in_dim(kva_elab *e, const char *name) {
  const kva_el_value *v = kva_el_find(e, name);
  if (v && v->kind != KVA_EL_TENSOR && v->kind != KVA_EL_LITERAL) return *v;
  v = kva_map_get_str(e->symbols, name);
  return v ? *v : new_symbol(e, name);
}

/* In floordiv(N, 2), N may be a new symbol. */
void kva_el_declare_symbols(kva_elab *e, const kva_ast_expr *x) {
  if (x->kind == KVA_AST_NAME || x->kind == KVA_AST_STRING) name_in_dim(e, x->text);
  if (x->kind == KVA_AST_CALL && !strcmp(x->call->name, "dim")) return;
  for (uint32_t i = 0; i < x->items.len; i++) kva_el_declare_symbols(e, x->items.data[i]);
}

static kva_el_value eval_dim(kva_elab *e, const kva_ast_expr *x) {
  if (x->kind == KVA_AST_NAME || x->kind == KVA_AST_STRING) return name_in_dim(e, x->text);
  if (x->kind == KVA_AST_UNKNOWN) return new_symbol(e, kva_arena_printf(e->scratch, "_%u", e->unnamed++));
  if (x->kind == KVA_AST_UNARY) return kva_el_unary(e, x, eval_dim(e, x->items.data[0]));
  if (x->kind == KVA_AST_BINARY) {
    kva_el_value a = eval_dim(e, x->items.data[0]);
    return kva_el_binary(e, x, a, eval_dim(e, x->items.data[1]));
  }
  if (x->kind == KVA_AST_CALL) kva_el_declare_symbols(e, x);
  return kva_el_expr_in_dims(e, x);
}

static bool eval_extent(kva_elab *e, const kva_ast_expr *x, kva_dim *out) {
  int64_t v;
  if (!kva_el_as_dim(e, x, eval_dim(e, x), "this dimension", out)) return false;
  if ((*out)->kind == KVA_EXPR_OVERFLOW) {
    kva_el_error(e, x->first, "this dimension does not fit 64 bits");
    return false;
  }
  if (!kva_expr_is_const(*out, &v) || v >= 0) return true;
  kva_el_error(e, x->first, "this dimension is %lld; it must not be negative", (long long)v);
  return false;
}

static const kva_type *unsupported(kva_elab *e, const kva_ast_type *t, const char *what) {
  kva_loc loc = kva_el_loc(e, t->first);
  kva_fail(e->m->diag, KVA_UNSUPPORTED, &loc, "%s", what);
  e->unsupported++;
  return NULL;
}

const kva_type *kva_el_type(kva_elab *e, const kva_ast_type *t) {
  if (t->kind != KVA_AST_TENSOR) return unsupported(e, t, "only tensors are supported here");
  if (t->any_rank) return unsupported(e, t, "a tensor of unknown rank; give its dimensions, [?, ?] if need be");
  if (t->dims.len > KVA_MAX_RANK) {
    kva_el_error(e, t->first, "rank %u is more than the %d that are supported", t->dims.len, KVA_MAX_RANK);
    return NULL;
  }
  kva_dim dims[KVA_MAX_RANK];
  bool ok = true;
  for (uint32_t i = 0; i < t->dims.len; i++) ok &= eval_extent(e, t->dims.data[i], &dims[i]);
  return ok ? kva_type_tensor(e->m, t->dtype, t->dims.len, dims) : NULL;
}

/* ---- literals ---------------------------------------------------------------------------------------------------- */

/* ONNX text writes narrow floats as integers that hold their bits; decimals with a point are numbers. */
static kva_dtype bits_dtype(kva_dtype t) {
  if (!kva_dtype_is_float(t) || kva_dtype_bits(t) > 16) return KVA_DTYPE_NONE;
  switch (kva_dtype_bits(t)) {
  case 16: return KVA_U16;
  case 8: return KVA_U8;
  default: return KVA_U4;
  }
}

static bool store_int(kva_elab *e, const kva_ast_expr *x, kva_dtype t, void *data, int64_t i, uint64_t v, bool minus) {
  int64_t s = minus ? (int64_t)(0 - v) : (int64_t)v;
  bool fits = t == KVA_U64 ? !minus || v == 0 : minus ? v <= (uint64_t)INT64_MAX + 1 : v <= INT64_MAX;
  if (t == KVA_BOOL) fits = !minus && v <= 1;
  if (kva_dtype_is_int(t)) fits = fits && kva_wrap_i64(t, s) == s;
  if (!fits) {
    kva_el_error(e, x->first, "%s%llu does not fit %s", minus ? "-" : "", (unsigned long long)v, kva_dtype_name(t));
    return false;
  }
  kva_store_i64(t, data, i, s);
  return true;
}

static bool store_element(kva_elab *e, const kva_ast_expr *x, kva_dtype t, void *data, int64_t i) {
  bool minus = x->kind == KVA_AST_UNARY && x->op == KVA_AST_NEG;
  const kva_ast_expr *number = minus ? x->items.data[0] : x;
  kva_dtype integers = kva_dtype_is_float(t) ? bits_dtype(t) : t;
  if (number->kind == KVA_AST_INT && integers != KVA_DTYPE_NONE) {
    return store_int(e, x, integers, data, i, number->integer, minus);
  }
  kva_el_value v = kva_el_expr(e, x);
  if (v.kind == KVA_EL_BOOL || (v.kind == KVA_EL_INT && integers != KVA_DTYPE_NONE)) {
    return store_int(e, x, t, data, i, (uint64_t)(v.i < 0 ? -v.i : v.i), v.i < 0);
  }
  double f;
  if (!kva_dtype_is_float(t)) {
    kva_el_error(e, x->first, "an element of %s must be an integer", kva_dtype_name(t));
    return false;
  }
  if (!kva_el_as_float(e, x, v, "this element", &f)) return false;
  kva_store_f64(t, data, i, f);
  return true;
}

static const char *pair(const kva_ast_expr *x, const char *key) {
  for (uint32_t i = 0; i + 1 < x->items.len; i += 2) {
    if (strcmp(x->items.data[i]->text, key)) continue;
    const kva_ast_expr *v = x->items.data[i + 1];
    return v->kind == KVA_AST_STRING ? v->text : NULL;
  }
  return NULL;
}

/* A decimal >= 0; `missing` if the key is absent. */
static bool pair_number(kva_elab *e, const kva_ast_expr *x, const char *key, int64_t missing, int64_t *out) {
  const char *s = pair(x, key);
  char *end = NULL;
  *out = s ? strtoll(s, &end, 10) : missing;
  if (!s || (end != s && !*end && *out >= 0)) return true;
  kva_el_error(e, x->first, "external data: %s is \"%.40s\", not a number", key, s);
  return false;
}

/* Dumps refer to large constants by a hash of the content. */
static bool load_by_hash(kva_elab *e, const kva_ast_expr *x, const char *hash, kva_tensor_data *data) {
  const kva_module *from = e->options ? e->options->data_from : NULL;
  const kva_tensor_data *found = from ? kva_module_find_data(from, strtoull(hash, NULL, 16)) : NULL;
  bool same = found && found->dtype == data->dtype && found->rank == data->rank;
  for (uint32_t i = 0; same && i < data->rank; i++) same = found->dims[i] == data->dims[i];
  if (same)
    data->data = found->data;
  else
    kva_el_error(e, x->first,
                 "the values of this tensor are not in the text, only their hash; a dump with large "
                 "constants can be read back only beside the module that it was printed from");
  return same;
}

/* Copies external data: texts are small, and modules do not own mappings. */
static bool load_external(kva_elab *e, const kva_ast_expr *x, kva_tensor_data *data) {
  const char *location = pair(x, "location"), *hash = pair(x, "hash");
  int64_t offset, length, end;
  if (hash) return load_by_hash(e, x, hash, data);
  if (!location) {
    kva_el_error(e, x->first, "external data need \"location\": a file beside this one");
    return false;
  }
  if (!pair_number(e, x, "offset", 0, &offset) || !pair_number(e, x, "length", data->bytes, &length)) return false;
  if (e->options && e->options->in_memory) {
    kva_el_error(e, x->first, "external data need a model file beside them; this model is in memory");
    return false;
  }
  kva_file file;
  if (kva_file_map_below(kva_file_folder(e->scratch, e->ast->tokens.file), location, e->m->diag, &file) != KVA_OK) {
    kva_loc loc = kva_el_loc(e, x->first);
    kva_note(e->m->diag, &loc, "it holds the data of this tensor");
    return false;
  }
  bool ok = length == data->bytes && kva_add_size(offset, length, &end) && end <= (int64_t)file.size;
  if (ok)
    data->data = kva_arena_memdup(e->m->arena, (const char *)file.data + offset, (size_t)length);
  else
    kva_el_error(e, x->first, "the tensor has %lld bytes; '%s' (%zu bytes) holds %lld at offset %lld",
                 (long long)data->bytes, location, file.size, (long long)length, (long long)offset);
  kva_file_unmap(&file);
  return ok;
}

static bool is_complex(kva_dtype t) {
  return t == KVA_C64 || t == KVA_C128;
}

static bool load_elements(kva_elab *e, const kva_ast_expr *x, kva_tensor_data *data, int64_t n) {
  kva_dtype t = data->dtype;
  if (is_complex(t)) {
    n *= 2;
    t = t == KVA_C64 ? KVA_F32 : KVA_F64;
  }
  if ((int64_t)x->items.len != n) {
    kva_el_error(e, x->first, "the shape of this tensor has %lld element%s, but %u are given", (long long)n,
                 n == 1 ? "" : "s", x->items.len);
    return false;
  }
  char *bytes = kva_arena_alloc(e->m->arena, (size_t)data->bytes);
  bool ok = true;
  for (uint32_t i = 0; i < x->items.len; i++) ok &= store_element(e, x->items.data[i], t, bytes, i);
  data->data = bytes;
  return ok;
}

const kva_tensor_data *kva_el_literal(kva_elab *e, const kva_ast_expr *x) {
  const kva_type *type = kva_el_type(e, x->type);
  if (!type) return NULL;
  kva_tensor_data *data = KVA_NEW(e->m->arena, kva_tensor_data);
  int64_t *dims = KVA_NEW_ARRAY(e->m->arena, int64_t, type->rank);
  int64_t n = 1;
  bool fits = true;
  for (uint32_t i = 0; i < type->rank; i++) {
    if (!kva_expr_is_const(type->dims[i], &dims[i])) {
      kva_el_error(e, x->type->dims.data[i]->first, "the dimensions of a tensor literal must be numbers");
      return NULL;
    }
    fits = fits && kva_mul_size(n, dims[i], &n);
  }
  if (type->dtype == KVA_STRING) {
    unsupported(e, x->type, "tensors of strings are not supported");
    return NULL;
  }
  *data = (kva_tensor_data){.dtype = type->dtype, .rank = type->rank, .dims = dims};
  if (!fits || !kva_dtype_bytes(type->dtype, n, &data->bytes) || n > INT64_MAX / 4) {
    kva_el_error(e, x->first, "this tensor is too large");
    return NULL;
  }
  bool ok = x->external ? load_external(e, x, data) : load_elements(e, x, data, n);
  return ok ? data : NULL;
}
