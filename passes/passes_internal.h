/* Shared by the passes; not seen outside the folder. */
#ifndef KVA_PASSES_PASSES_INTERNAL_H
#define KVA_PASSES_PASSES_INTERNAL_H

#include "passes/passes.h"
#include "ops/ids.h"

/* True for nodes without effects whose result depends on operands and attributes alone: what may be removed when
 * unused, merged when equal, folded when constant. */
static inline bool kva_node_is_pure(const kva_node *n) {
  return !(n->op->traits & (KVA_RETURN | KVA_READS_STATE | KVA_WRITES_STATE | KVA_BINDS)) && n->n_graphs == 0;
}

/* The node of operator `op` whose first result v is; NULL: there is none. */
static inline kva_node *kva_def_if(const kva_value *v, kva_op_id op) {
  return v && v->def && kva_is(v->def, op) && v->index == 0 ? v->def : NULL;
}

/* The state that a node reads, or writes; NULL: it does not. */
static inline kva_state *kva_state_read_by(const kva_node *n) {
  return kva_is(n, KVA_OP_state_read) ? ((const kva_state_read_attrs *)n->attrs)->state : NULL;
}
static inline kva_state *kva_state_written_by(const kva_node *n) {
  return n->op->traits & KVA_WRITES_STATE ? ((const kva_state_write_attrs *)n->attrs)->state : NULL;
}
static inline kva_value *kva_read_state(kva_builder *b, kva_state *s) {
  return kva_build(b, KVA_OP_state_read, 0, NULL, &(kva_state_read_attrs){.state = s});
}

/* Whether n, a cast, is one from a float type to a wider one. */
static inline bool kva_is_widening(const kva_node *n) {
  kva_dtype from = kva_operand_type(n, 0)->dtype, to = n->results[0].type->dtype;
  return kva_dtype_is_float(from) && kva_dtype_is_float(to) && kva_dtype_bits(from) < kva_dtype_bits(to);
}

/* For passes that count their changes (KVA_PASS_COUNTS): whether one more may be made, asked before it is; and that it
 * was made, at n, by a rule (NULL: that of n's operator). */
static inline bool kva_may_change(const kva_pass_options *o) {
  return kva_pass_may_change(o->control);
}
void kva_count_change(const kva_pass_options *o, const kva_node *n, const char *rule, bool *changed);

/* True when v is a constant all of whose elements equal `x`. */
bool kva_is_splat(const kva_value *v, double x);
/* util.c: whether node a stands before node b in the graph of both. */
bool kva_comes_before(const kva_node *a, const kva_node *b);
/* True when v is a constant with all elements equal, and which; false if a double cannot hold it. */
bool kva_splat_value(const kva_value *v, double *out_x);

/* Whether u looks up rows of a matrix: of an embedding. */
bool kva_takes_rows(const kva_use *u);
/* x [N, C, ...] with `more` further channels, of zeros. */
kva_value *kva_pad_channels(kva_builder *b, kva_value *x, int64_t more);
/* n unpacks weights (KVA_UNPACKS) that only products read, as the operand that they pack, directly or through
 * transpositions, and lookups of rows. */
bool kva_stays_packed(const kva_node *n);
/* n dequantises a constant matrix of codes that pass pack stores anew: only products read it, as second operand and of
 * one orientation, *out_transposed, and lookups of rows. */
bool kva_packs_codes(const kva_node *n, bool *out_transposed);
/* n widens floats of 16 bits that only matrix products read, as their second operand and not transposed, and lookups of
 * rows. What other products make of such constants was not measured. */
bool kva_stays_narrow(const kva_node *n);

/* n dequantises codes that only products which become integer ones read (opt_integer.c). */
bool kva_stays_codes(const kva_node *n);

/* The graphs of all functions and the sub-graphs of their control nodes, inner ones first. */
typedef KVA_VEC(kva_graph *) kva_graphs;
kva_graphs kva_program_graphs(const kva_module *m, kva_arena *arena);
/* Visits these graphs, inner ones first, until a visit fails; its status. */
typedef kva_status (*kva_graph_visitor)(kva_module *m, kva_graph *g, const kva_pass_options *o, bool *changed);
kva_status kva_visit_graphs(kva_module *m, kva_graph_visitor visit, const kva_pass_options *o, bool *changed);

/* Copies the nodes of `from` (without its return node) to the end of `to`. values[id] must hold the copies of from's
 * inputs and of every outer value it uses, for ids up to the module's next one; it receives the copies of all results,
 * those of sub-graphs too. */
void kva_graph_copy_nodes(const kva_graph *from, kva_graph *to, kva_value **values);

/* The copies of n's sub-graphs become those of `copy`. values: room for the module's values. */
void kva_node_copy_graphs(const kva_node *n, kva_node *copy, kva_value **values);

/* Rebuilds a control node or kernel without the marked operands, which no sub-graph uses, and the marked results, which
 * are unused. */
kva_node *kva_node_narrow(kva_node *n, const bool *no_operand, const bool *no_result);
/* opt_dce.c: what pass dce does to one graph and its sub-graphs. */
void kva_remove_dead(kva_graph *g, bool *changed);
/* n of operands that are one number throughout (opt_uniform.c); NULL: others. */
kva_value *kva_simplify_uniform(kva_builder *b, kva_node *n);

/* shard_states.c: whether training with these options holds s, what is kept for it and its gradient in parts, as far as
 * mesh.zero says. */
bool kva_in_parts(kva_module *m, const kva_state *s, const kva_pass_options *o);
/* Makes s, of the same shape as `whole`, one of `parts` parts of it. */
void kva_make_part(kva_module *m, kva_state *s, const kva_type *whole, int64_t parts);
/* Whether g, the gradient of s, is that of a process's part. */
static inline bool kva_is_part(const kva_state *s, const kva_value *g) {
  return s->whole || g->type != s->type;
}
/* shard.c: an error if the forward pass writes a state, of which each process of a mesh would have its own. */
KVA_MUST_USE kva_status kva_check_forward_states(kva_module *m, const kva_graph *g);
/* train_norm.c: batch normalisation of g in training takes the statistics of its batch, and its buffers follow. */
KVA_MUST_USE kva_status kva_train_norms(kva_module *m, kva_graph *g);
/* partition.c: removes kv.share, which only differentiation needs. */
void kva_drop_shares(kva_module *m);
/* Before training programs are made: parameters become parts, which functions gather where they read them. */
KVA_MUST_USE kva_status kva_shard_parameters(kva_module *m, const kva_pass_options *o);
/* The part of `whole` that a process has, and the whole of type `whole` that a part is of. */
kva_value *kva_own_part(kva_builder *b, kva_value *whole, const kva_mesh *mesh);
kva_value *kva_all_gather(kva_builder *b, kva_value *part, const kva_type *whole, const kva_mesh *mesh);

/* plan.c: the value whose memory v shares. */
kva_value *kva_storage_root(kva_value *v);
/* Exchanges between processes of a finished plan go on while other steps run, where they can (plan_waits.c). */
void kva_plan_waits(kva_memory_plan *plan, kva_arena *arena);
/* Proposes that results of kernels take the memory of operands (plan_in_place.c). */
void kva_plan_in_place(kva_module *m, kva_memory_plan *plan, kva_arena *arena);

/* A further function of m with the nodes of f. */
kva_function *kva_function_clone(kva_module *m, const kva_function *f, const char *name);

/* symbols.c: `to` takes the place of the symbol in all types and attributes of g and its sub-graphs. A symbol as `to`
 * also takes its place where it is bound. */
void kva_replace_symbol(kva_graph *g, const kva_expr *symbol, kva_dim to);

/* opt_split_shift.c: the gradients of a KV shift by input and weights become one node; false: there are none. */
bool kva_split_shift_grads(kva_module *m, kva_graph *g);

#endif
