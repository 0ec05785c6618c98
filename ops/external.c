/* external(x, ...) -> to[shape]: the result of function `name` of runtime/base/external.h, with the constants `text`
 * and `number`. It is a call of the runtime (runtime/call_external.c) and is never folded: the numbers of strings mean
 * something in one run only. Exact: reference and runtime run the same function. */
#include "ops/check.h"
#include "ops/element.h"
#include "runtime/base/external.h"

KVA_OP_FUNCTIONS(external)

kva_status kva_external_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_external_attrs *a = n->attrs;
  if (!kva_external_exists(a->name))
    return kva_error(m->diag, &n->loc, "kv.external: there is no function '%s'", a->name ? a->name : "");
  out_types[0] = kva_type_tensor(m, a->to, a->shape.n, a->shape.v);
  return KVA_OK;
}

static kva_status pack(kva_ref *r, const kva_ref_tensor *w, kva_external_tensor *out) {
  int64_t bytes;
  if (!kva_dtype_bytes(w->dtype, w->n, &bytes)) return KVA_NO_MEMORY;
  *out = (kva_external_tensor){.dtype = w->dtype, .n = w->n, .data = kva_arena_alloc(r->scratch, (size_t)bytes + 1)};
  kva_ref_tensor_to_data(w, out->data);
  return KVA_OK;
}

kva_status kva_external_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                            kva_ref_tensor *const *out) {
  const kva_external_attrs *a = n->attrs;
  kva_module *m = n->graph->module;
  kva_external_tensor *args = KVA_NEW_ARRAY(r->scratch, kva_external_tensor, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) KVA_TRY(pack(r, in[i], &args[i]));
  KVA_TRY(pack(r, out[0], &args[n->n_operands]));
  if (!m->strings) m->strings = kva_string_table_create(m->arena);
  kva_external_call c = {.name = a->name,
                         .text = a->text ? a->text : "",
                         .number = a->number,
                         .strings = m->strings,
                         .n_args = n->n_operands + 1,
                         .args = args};
  kva_status status = kva_external_run(&c);
  if (status) return kva_fail(r->diag, status, &n->loc, "kv.external: %s: %s", a->name, c.error);
  for (int64_t i = 0; i < out[0]->n; i++) {
    if (out[0]->f)
      out[0]->f[i] = kva_load_f64(out[0]->dtype, args[n->n_operands].data, i);
    else
      out[0]->i[i] = kva_load_i64(out[0]->dtype, args[n->n_operands].data, i);
  }
  return KVA_OK;
}
