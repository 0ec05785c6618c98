/* Loads and stores. Consecutive lanes become vector accesses, others gathers and scatters; predicates and inactive
 * lanes become masks. A masked-off load gives 0 and accesses no memory. A CPU loads lanes that are 2 to 4 elements
 * apart as the vectors that hold them, and what lies between, and shuffles; likewise lanes that take turns in rows.
 *
 * Distinct buffers do not alias, except a result in place of an operand, where ir/kernel_alias.c allows that. Hence
 * every access carries its buffer's alias scope, and LLVM may move loads across stores to other buffers. It may also
 * repeat them there, so a result and an operand that could share memory are not disjoint. */
#include "codegen/llvm_internal.h"

typedef enum reach { UNIFORM, CONTIGUOUS, NEAR, INTERLEAVED, SCATTERED } reach;

static bool is_packed(const kva_kbuf *buf) {
  return kva_dtype_bits(buf->dtype) < 8;
}

static reach reach_of(const kva_emit *e, const kva_kinstr *i) {
  KVA_ASSERT(i->buf && i->index);
  if (!kva_ll_expr_varying(e, i->index)) return UNIFORM;
  int64_t stride = is_packed(i->buf) ? 0 : kva_ll_expr_stride(e, i->index);
  if (stride == 1) return CONTIGUOUS;
  if (kva_ll_is_gpu(e) || is_packed(i->buf) || i->op != KVA_K_LOAD) return SCATTERED;
  if (stride > 1 && stride <= KVA_NEAR_STRIDE && e->lanes.n >= KVA_NEAR_STRIDE) return NEAR;
  int64_t distance, rows = kva_ll_expr_interleaved(e, i->index, &distance);
  return rows && rows <= KVA_NEAR_STRIDE && 2 * rows <= (int64_t)e->lanes.n ? INTERLEAVED : SCATTERED;
}

static void annotate(kva_emit *e, const kva_kbuf *buf, LLVMValueRef access) {
  if (buf->space != KVA_K_PARAM || !e->scopes[buf->id]) return;
  LLVMSetMetadata(access, LLVMGetMDKindIDInContext(e->ctx, "alias.scope", 11), e->scopes[buf->id]);
  LLVMSetMetadata(access, LLVMGetMDKindIDInContext(e->ctx, "noalias", 7), e->others[buf->id]);
}

static unsigned element_bytes(const kva_kbuf *buf) {
  return is_packed(buf) ? 1 : (unsigned)kva_dtype_bits(buf->dtype) / 8;
}

/* The byte that holds a packed element. */
static LLVMValueRef byte_of_packed(kva_emit *e, const kva_kbuf *buf, LLVMValueRef index) {
  KVA_ASSERT(kva_dtype_bits(buf->dtype) == 4 || kva_dtype_bits(buf->dtype) == 2);
  int per_byte = 8 / kva_dtype_bits(buf->dtype);
  return LLVMBuildLShr(e->b, index, kva_ll_int(LLVMTypeOf(index), per_byte == 2 ? 1 : 2), "");
}

/* Shift of a packed element within its byte, as i8. */
static LLVMValueRef shift_of_packed(kva_emit *e, const kva_kbuf *buf, LLVMValueRef index) {
  int bits = kva_dtype_bits(buf->dtype);
  LLVMValueRef in_byte = LLVMBuildAnd(e->b, index, kva_ll_int(LLVMTypeOf(index), 8 / bits - 1), "");
  LLVMValueRef shift = LLVMBuildMul(e->b, in_byte, kva_ll_int(LLVMTypeOf(index), bits), "");
  return LLVMBuildTrunc(e->b, shift, kva_ll_like(LLVMInt8TypeInContext(e->ctx), index), "");
}

static LLVMValueRef address(kva_emit *e, const kva_kbuf *buf, LLVMValueRef index, bool in_bounds) {
  KVA_ASSERT(e->bufs[buf->id]);
  LLVMValueRef at = is_packed(buf) ? byte_of_packed(e, buf, index) : index;
  LLVMTypeRef type = kva_ll_storage(e, buf->dtype);
  return in_bounds ? LLVMBuildInBoundsGEP2(e->b, type, e->bufs[buf->id], &at, 1, "")
                   : LLVMBuildGEP2(e->b, type, e->bufs[buf->id], &at, 1, "");
}

/* GPUs split vectors without known alignment, and LLVM merges adjacent scalars into vectors if it knows theirs. */
static unsigned alignment_of(const kva_emit *e, const kva_kinstr *i, LLVMTypeRef type) {
  unsigned bytes = element_bytes(i->buf);
  if (!kva_ll_is_gpu(e) || is_packed(i->buf)) return bytes;
  bool vector = LLVMGetTypeKind(type) == LLVMVectorTypeKind;
  if (!vector) {
    int64_t multiple = kva_ll_expr_multiple(e, i->index);
    while (bytes < KVA_GPU_ALIGNMENT && multiple % 2 == 0) bytes *= 2, multiple /= 2;
    return bytes;
  }
  if (!kva_ll_expr_aligned(e, i->index)) return bytes;
  bytes *= LLVMGetVectorSize(type);
  return bytes < KVA_GPU_ALIGNMENT ? bytes : KVA_GPU_ALIGNMENT;
}

static LLVMValueRef plain_load(kva_emit *e, const kva_kinstr *i, LLVMTypeRef type, LLVMValueRef pointer) {
  const kva_kbuf *buf = i->buf;
  LLVMValueRef v = LLVMBuildLoad2(e->b, type, pointer, "");
  LLVMSetAlignment(v, alignment_of(e, i, type));
  annotate(e, buf, v);
  if (buf->space == KVA_K_PARAM && !buf->written && !e->shares[buf->id]) {
    unsigned kind = LLVMGetMDKindIDInContext(e->ctx, "invariant.load", 14);
    LLVMSetMetadata(v, kind, LLVMMetadataAsValue(e->ctx, LLVMMDNodeInContext2(e->ctx, NULL, 0)));
  }
  return v;
}

static void plain_store(kva_emit *e, const kva_kinstr *i, LLVMValueRef v, LLVMValueRef pointer) {
  LLVMValueRef s = LLVMBuildStore(e->b, v, pointer);
  LLVMSetAlignment(s, alignment_of(e, i, LLVMTypeOf(v)));
  annotate(e, i->buf, s);
}

/* Zero bytes that a load reads if its predicate is false: as many as it takes, or as a loop walks through. */
static LLVMValueRef zeros(kva_emit *e, int64_t bytes) {
  char name[32];
  snprintf(name, sizeof name, "kva.zero.%" PRId64, bytes);
  LLVMValueRef global = LLVMGetNamedGlobal(e->module, name);
  if (global) return global;
  LLVMTypeRef type = LLVMArrayType2(LLVMInt64TypeInContext(e->ctx), (uint64_t)(bytes + 7) / 8);
  global = LLVMAddGlobal(e->module, type, name);
  LLVMSetInitializer(global, LLVMConstNull(type));
  LLVMSetGlobalConstant(global, true);
  LLVMSetLinkage(global, LLVMPrivateLinkage);
  return global;
}

/* The variable of the loop among those around, innermost first, on which the index depends. */
static const kva_expr *innermost(const kva_emit *e, const kva_expr *index) {
  for (uint32_t i = e->bindings.len; i-- > 0;) {
    const kva_binding *b = &e->bindings.data[i];
    if (!LLVMIsConstant(b->value) && kva_expr_uses(index, b->symbol)) return b->symbol;
  }
  return NULL;
}

/* Where an element and those of other lanes behind it are, or zeros if pred is false. If a short loop walks through
 * elements side by side, zeros are as long: then LLVM chooses before the loop. */
static LLVMValueRef address_or_zeros(kva_emit *e, const kva_kinstr *i, LLVMValueRef index, LLVMValueRef pred) {
  enum { MOST = 4096 }; /* bytes */
  const kva_expr *var = innermost(e, i->index), *coefficient, *rest;
  int64_t last, bytes = element_bytes(i->buf), all = e->lanes.n * bytes;
  bool walks = var && !is_packed(i->buf) && kva_expr_upper_bound(var, &last) && all + last * bytes <= MOST &&
               kva_expr_affine(e->k->exprs, i->index, var, &coefficient, &rest) && kva_expr_is(coefficient, 1);
  if (!walks) return LLVMBuildSelect(e->b, pred, address(e, i->buf, index, false), zeros(e, all), "");
  LLVMValueRef from = address(e, i->buf, kva_ll_expr(e, rest), false), step = kva_ll_expr(e, var);
  from = LLVMBuildSelect(e->b, pred, from, zeros(e, all + last * bytes), "");
  return LLVMBuildGEP2(e->b, kva_ll_storage(e, i->buf->dtype), from, &step, 1, "");
}

static LLVMValueRef load_scalar(kva_emit *e, const kva_kinstr *i, LLVMValueRef pred) {
  LLVMValueRef index = kva_ll_expr(e, i->index);
  LLVMValueRef pointer = pred ? address_or_zeros(e, i, index, pred) : address(e, i->buf, index, true);
  LLVMValueRef v = plain_load(e, i, kva_ll_storage(e, i->buf->dtype), pointer);
  if (is_packed(i->buf)) v = LLVMBuildLShr(e->b, v, shift_of_packed(e, i->buf, index), "");
  return v;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* The machine has an instruction for it: AVX-512 for elements in a row, and for others of 32 bits and more, which AVX2
 * only loads. For what it has not LLVM makes a branch of each lane, and LLVM 19 then gives some lanes the masks of
 * others (machine-cse after sinking; tests/e2e/gather_halves.kv has a graph). So lanes have addresses of their own
 * here, or that of a spare place, without branches. */
static bool has_masked(const kva_emit *e, const kva_kbuf *buf, bool in_row, bool loads) {
  enum { AVX2 = 32, AVX512 = 64, WORD = 4 }; /* bytes */
  int64_t vector = e->cg->target.vector_bytes;
  bool words = element_bytes(buf) >= WORD;
  if (kva_ll_is_gpu(e)) return true;
  return in_row ? vector >= AVX512 || (vector >= AVX2 && words) : words && vector >= (loads ? AVX2 : AVX512);
}

static LLVMValueRef lane_pointer(kva_emit *e, const kva_kbuf *buf, LLVMValueRef pointer, LLVMValueRef mask,
                                 LLVMValueRef otherwise, unsigned k) {
  LLVMValueRef lane = kva_ll_i64(e, k);
  LLVMValueRef at = kva_ll_is_vector(pointer)
                        ? LLVMBuildExtractElement(e->b, pointer, lane, "")
                        : LLVMBuildGEP2(e->b, kva_ll_storage(e, buf->dtype), pointer, &lane, 1, "");
  return LLVMBuildSelect(e->b, LLVMBuildExtractElement(e->b, mask, lane, ""), at, otherwise, "");
}

static LLVMValueRef load_lanes(kva_emit *e, const kva_kbuf *buf, LLVMTypeRef type, LLVMValueRef pointer,
                               LLVMValueRef mask) {
  LLVMValueRef v = LLVMGetPoison(type), none = zeros(e, 8);
  for (unsigned k = 0; k < LLVMGetVectorSize(type); k++) {
    LLVMValueRef at = lane_pointer(e, buf, pointer, mask, none, k);
    LLVMValueRef x = LLVMBuildLoad2(e->b, kva_ll_storage(e, buf->dtype), at, "");
    LLVMSetAlignment(x, element_bytes(buf));
    v = LLVMBuildInsertElement(e->b, v, x, kva_ll_i64(e, k), "");
  }
  return v;
}

static void store_each(kva_emit *e, const kva_kbuf *buf, LLVMValueRef v, LLVMValueRef pointer, LLVMValueRef mask) {
  for (unsigned k = 0; k < LLVMGetVectorSize(LLVMTypeOf(v)); k++) {
    LLVMValueRef at = lane_pointer(e, buf, pointer, mask, e->spare, k);
    LLVMValueRef s = LLVMBuildStore(e->b, LLVMBuildExtractElement(e->b, v, kva_ll_i64(e, k), ""), at);
    LLVMSetAlignment(s, element_bytes(buf));
  }
}

static LLVMValueRef masked_load(kva_emit *e, const kva_kbuf *buf, LLVMTypeRef type, LLVMValueRef pointer,
                                LLVMValueRef mask) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef args[] = {pointer, LLVMConstInt(i32, element_bytes(buf), false), mask, LLVMConstNull(type)};
  LLVMTypeRef types[] = {type, LLVMTypeOf(pointer)};
  bool gather = kva_ll_is_vector(pointer);
  if (!LLVMIsConstant(mask) && !has_masked(e, buf, !gather, true)) return load_lanes(e, buf, type, pointer, mask);
  LLVMValueRef v = kva_ll_intrinsic(e, gather ? "llvm.masked.gather" : "llvm.masked.load", 2, types, 4, args);
  annotate(e, buf, v);
  return v;
}

LLVMValueRef kva_ll_masked_vector(kva_emit *e, const kva_kbuf *buf, LLVMValueRef index, LLVMValueRef mask) {
  LLVMTypeRef type = LLVMVectorType(kva_ll_storage(e, buf->dtype), e->lanes.n);
  return masked_load(e, buf, type, address(e, buf, index, false), mask);
}

static void masked_store(kva_emit *e, const kva_kbuf *buf, LLVMValueRef v, LLVMValueRef pointer, LLVMValueRef mask) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef args[] = {v, pointer, LLVMConstInt(i32, element_bytes(buf), false), mask};
  LLVMTypeRef types[] = {LLVMTypeOf(v), LLVMTypeOf(pointer)};
  bool scatter = kva_ll_is_vector(pointer);
  if (!LLVMIsConstant(mask) && !has_masked(e, buf, !scatter, false)) {
    store_each(e, buf, v, pointer, mask);
    return;
  }
  LLVMValueRef call = kva_ll_intrinsic(e, scatter ? "llvm.masked.scatter" : "llvm.masked.store", 2, types, 4, args);
  annotate(e, buf, call);
}

static LLVMValueRef all_lanes(kva_emit *e, unsigned lanes) {
  return LLVMConstAllOnes(LLVMVectorType(LLVMInt1TypeInContext(e->ctx), lanes));
}

/* Lanes that are active and fulfil pred; NULL: all. */
static LLVMValueRef mask_of(kva_emit *e, LLVMValueRef pred) {
  LLVMValueRef mask = kva_ll_and(e, e->lanes.mask, pred);
  return mask ? kva_ll_splat(e, mask, e->lanes.n) : NULL;
}

/* Locality of what LLVM prefetches. */
enum { SECOND_CACHE = 2, FIRST_CACHE = 3 };

static void prefetch(kva_emit *e, LLVMValueRef at, bool written, unsigned locality) {
  enum { DATA = 1 };
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx), types[] = {LLVMTypeOf(at)};
  LLVMValueRef args[] = {at, LLVMConstInt(i32, written, false), LLVMConstInt(i32, locality, false),
                         LLVMConstInt(i32, DATA, false)};
  (void)kva_ll_intrinsic(e, "llvm.prefetch", 1, types, 4, args);
}

/* The dialect of hints (ir/dialect_cpu.h). */
void kva_ll_cpu(kva_emit *e, const kva_kinstr *i) {
  const kva_kplace *p = &i->intrinsic->places[0];
  prefetch(e, address(e, p->buf, kva_ll_expr(e, p->index), false), false, SECOND_CACHE);
}

/* Fetches the line that is so many bytes behind the access: of vectors that share one, for those that may begin it.
 * What will be read comes to the second cache: the first one has places for few lines on their way, too few for the
 * bandwidth of memory, and lines of rows that are a power of two apart would push each other out of it. */
static void fetch_ahead(kva_emit *e, const kva_kinstr *i, LLVMValueRef pointer) {
  enum { LINE = 64 };
  int64_t size = element_bytes(i->buf);
  if (!i->imm.i || kva_ll_is_gpu(e)) return;
  if (e->lanes.n * size < LINE && !kva_ll_expr_may_be_multiple(e, i->index, LINE / size)) return;
  LLVMValueRef by = kva_ll_i64(e, i->imm.i);
  LLVMValueRef at = LLVMBuildGEP2(e->b, LLVMInt8TypeInContext(e->ctx), pointer, &by, 1, "");
  bool written = i->op == KVA_K_STORE;
  prefetch(e, at, written, written ? FIRST_CACHE : SECOND_CACHE);
}

/* Where no lane is loaded, the address may lie behind the buffer. A page that is not there costs processors much more
 * than the load then, although they raise no fault. */
static LLVMValueRef load_contiguous(kva_emit *e, const kva_kinstr *i, LLVMValueRef pred) {
  LLVMTypeRef type = LLVMVectorType(kva_ll_storage(e, i->buf->dtype), e->lanes.n);
  LLVMValueRef index = kva_ll_expr(e, i->index);
  bool uniform = pred && !kva_ll_is_vector(pred) && !kva_ll_is_gpu(e);
  if (uniform && !e->lanes.mask) return plain_load(e, i, type, address_or_zeros(e, i, index, pred));
  LLVMValueRef mask = mask_of(e, pred);
  LLVMValueRef pointer = uniform ? address_or_zeros(e, i, index, pred) : address(e, i->buf, index, !mask);
  if (!pred) fetch_ahead(e, i, pointer);
  return mask ? masked_load(e, i->buf, type, pointer, mask) : plain_load(e, i, type, pointer);
}

/* Addresses of lanes as one address and what they differ by, which may have 32 bits: a CPU gathers twice as many then.
 */
static LLVMValueRef addresses(kva_emit *e, const kva_kbuf *buf, const kva_expr *index) {
  LLVMValueRef uniform, varying = kva_ll_expr_parts(e, index, &uniform);
  LLVMTypeRef type = kva_ll_storage(e, buf->dtype);
  LLVMValueRef base = e->bufs[buf->id];
  if (uniform) base = LLVMBuildGEP2(e->b, type, base, &uniform, 1, "");
  return LLVMBuildGEP2(e->b, type, base, &varying, 1, "");
}

static LLVMValueRef load_gather(kva_emit *e, const kva_kinstr *i, LLVMValueRef mask) {
  LLVMTypeRef type = LLVMVectorType(kva_ll_storage(e, i->buf->dtype), e->lanes.n);
  LLVMValueRef permuted = mask ? NULL : kva_ll_permute(e, i);
  if (permuted) return permuted;
  bool in_parts = !is_packed(i->buf) && !kva_ll_is_gpu(e);
  LLVMValueRef index = in_parts ? NULL : kva_ll_expr_lanes(e, i->index);
  LLVMValueRef pointer = in_parts ? addresses(e, i->buf, i->index) : address(e, i->buf, index, !mask);
  LLVMValueRef v = masked_load(e, i->buf, type, pointer, mask ? mask : all_lanes(e, e->lanes.n));
  if (is_packed(i->buf)) v = LLVMBuildLShr(e->b, v, shift_of_packed(e, i->buf, index), "");
  return v;
}

/* Mask of the elements base, base + 1, ... of which every `stride`-th is a lane. */
static LLVMValueRef spread_mask(kva_emit *e, LLVMValueRef mask, int64_t stride, int64_t base) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  unsigned n = e->lanes.n;
  LLVMValueRef *from = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, n);
  for (unsigned k = 0; k < n; k++) {
    int64_t at = base + k;
    from[k] = LLVMConstInt(i32, at % stride ? n : (uint64_t)(at / stride), false);
  }
  return LLVMBuildShuffleVector(e->b, mask, LLVMConstNull(LLVMTypeOf(mask)), LLVMConstVector(from, n), "");
}

/* v with the lanes that lie in `part`, the elements from base on, taken from there. */
static LLVMValueRef pick_lanes(kva_emit *e, LLVMValueRef v, LLVMValueRef part, int64_t stride, int64_t base) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  unsigned n = e->lanes.n;
  LLVMValueRef *from = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, n);
  for (unsigned k = 0; k < n; k++) {
    int64_t at = k * stride - base;
    from[k] = LLVMConstInt(i32, at >= 0 && at < n ? (uint64_t)at + n : k, false);
  }
  return LLVMBuildShuffleVector(e->b, v, part, LLVMConstVector(from, n), "");
}

/* The vectors between the first lane and the last; the last vector ends with the last lane. */
static LLVMValueRef load_near(kva_emit *e, const kva_kinstr *i, LLVMValueRef mask) {
  int64_t stride = kva_ll_expr_stride(e, i->index), n = e->lanes.n;
  LLVMTypeRef type = LLVMVectorType(kva_ll_storage(e, i->buf->dtype), e->lanes.n);
  LLVMValueRef first = kva_ll_expr(e, i->index), v = LLVMGetPoison(type);
  for (int64_t j = 0; j < stride; j++) {
    int64_t base = j < stride - 1 ? j * n : (j * n) - (stride - 1);
    LLVMValueRef at = LLVMBuildNSWAdd(e->b, first, kva_ll_i64(e, base), "");
    LLVMValueRef pointer = address(e, i->buf, at, !mask);
    LLVMValueRef part = mask ? masked_load(e, i->buf, type, pointer, spread_mask(e, mask, stride, base))
                             : plain_load(e, i, type, pointer);
    v = pick_lanes(e, v, part, stride, base);
  }
  return v;
}

/* a[0], b[0], a[1], b[1], ... */
static LLVMValueRef interleaved(kva_emit *e, LLVMValueRef a, LLVMValueRef b) {
  unsigned n = LLVMGetVectorSize(LLVMTypeOf(a));
  LLVMValueRef *from = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, 2 * n);
  for (unsigned k = 0; k < 2 * n; k++) from[k] = kva_ll_int(LLVMInt32TypeInContext(e->ctx), k / 2 + k % 2 * n);
  return LLVMBuildShuffleVector(e->b, a, b, LLVMConstVector(from, 2 * n), "");
}

/* Every n-th lane of the mask from lane m on. */
static LLVMValueRef row_mask(kva_emit *e, LLVMValueRef mask, unsigned n, unsigned m) {
  unsigned lanes = e->lanes.n / n;
  LLVMValueRef *from = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, lanes);
  for (unsigned k = 0; k < lanes; k++) from[k] = kva_ll_int(LLVMInt32TypeInContext(e->ctx), k * n + m);
  return LLVMBuildShuffleVector(e->b, mask, LLVMGetPoison(LLVMTypeOf(mask)), LLVMConstVector(from, lanes), "");
}

/* A part of each row, which is a power of two; their first halves take turns with their second ones. */
static LLVMValueRef load_interleaved(kva_emit *e, const kva_kinstr *i, LLVMValueRef mask) {
  int64_t distance, n = kva_ll_expr_interleaved(e, i->index, &distance);
  LLVMTypeRef type = LLVMVectorType(kva_ll_storage(e, i->buf->dtype), e->lanes.n / (unsigned)n);
  LLVMValueRef first = kva_ll_expr(e, i->index), rows[KVA_NEAR_STRIDE] = {NULL};
  for (int64_t m = 0; m < n; m++) {
    rows[m] = rows[0];
    if (m && !distance && !mask) continue;
    LLVMValueRef at = LLVMBuildNSWAdd(e->b, first, kva_ll_i64(e, m * distance), "");
    LLVMValueRef pointer = address(e, i->buf, at, !mask);
    rows[m] = mask ? masked_load(e, i->buf, type, pointer, row_mask(e, mask, (unsigned)n, (unsigned)m))
                   : plain_load(e, i, type, pointer);
  }
  for (; n > 1; n /= 2)
    for (int64_t m = 0; m < n / 2; m++) rows[m] = interleaved(e, rows[m], rows[m + n / 2]);
  return rows[0];
}

static LLVMValueRef load_if(kva_emit *e, const kva_kinstr *i, LLVMValueRef pred);

/* One element for all lanes under a predicate that varies by lane: loads it if any lane needs it. */
static LLVMValueRef load_for_some(kva_emit *e, const kva_kinstr *i, LLVMValueRef pred) {
  LLVMValueRef any = kva_ll_any(e, pred), v;
  v = kva_ll_is_gpu(e) ? load_if(e, i, any) : kva_ll_from_storage(e, i->buf->dtype, load_scalar(e, i, any));
  v = kva_ll_splat(e, v, e->lanes.n);
  return LLVMBuildSelect(e->b, pred, v, LLVMConstNull(LLVMTypeOf(v)), "");
}

static LLVMValueRef load_where(kva_emit *e, const kva_kinstr *i, LLVMValueRef pred) {
  LLVMValueRef v;
  switch (reach_of(e, i)) {
  case UNIFORM:
    if (pred && kva_ll_is_vector(pred)) return load_for_some(e, i, pred);
    v = load_scalar(e, i, pred);
    break;
  case CONTIGUOUS: v = load_contiguous(e, i, pred); break;
  case NEAR: v = load_near(e, i, mask_of(e, pred)); break;
  case INTERLEAVED: v = load_interleaved(e, i, mask_of(e, pred)); break;
  default: v = load_gather(e, i, mask_of(e, pred));
  }
  return kva_ll_from_storage(e, i->buf->dtype, v);
}

/* Branches around a load with a uniform predicate: GPUs have no address that every pointer may have. */
static LLVMValueRef load_if(kva_emit *e, const kva_kinstr *i, LLVMValueRef pred) {
  LLVMBasicBlockRef before = LLVMGetInsertBlock(e->b), then = kva_ll_block(e, "load"), done = kva_ll_block(e, "loaded");
  LLVMBuildCondBr(e->b, pred, then, done);
  LLVMPositionBuilderAtEnd(e->b, then);
  LLVMValueRef v = load_where(e, i, NULL), values[] = {v, LLVMConstNull(LLVMTypeOf(v))};
  LLVMBasicBlockRef from[] = {LLVMGetInsertBlock(e->b), before};
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
  LLVMValueRef phi = LLVMBuildPhi(e->b, LLVMTypeOf(v), "");
  LLVMAddIncoming(phi, values, from, 2);
  return phi;
}

LLVMValueRef kva_ll_vector_at(kva_emit *e, const kva_kinstr *i, LLVMValueRef index) {
  LLVMTypeRef type = LLVMVectorType(kva_ll_storage(e, i->buf->dtype), e->lanes.n);
  return plain_load(e, i, type, address(e, i->buf, index, true));
}

LLVMValueRef kva_ll_raw_load(kva_emit *e, const kva_kinstr *i) {
  switch (reach_of(e, i)) {
  case UNIFORM: return load_scalar(e, i, NULL);
  case CONTIGUOUS: return load_contiguous(e, i, NULL);
  default: return load_gather(e, i, NULL);
  }
}

/* Hides the origin of v: otherwise LLVM also keeps values derived from it (converted elements, twice as large)
 * alive. */
static LLVMValueRef opaque(kva_emit *e, LLVMValueRef v) {
  LLVMTypeRef type = LLVMTypeOf(v), word = LLVMInt32TypeInContext(e->ctx);
  bool vector = LLVMGetTypeKind(type) == LLVMVectorTypeKind;
  unsigned bits = (unsigned)LLVMSizeOfTypeInBits(e->cg->module->layout, type);
  if (bits % 32 || !vector) return v;
  v = LLVMBuildBitCast(e->b, v, LLVMVectorType(word, bits / 32), "");
  for (unsigned w = 0; w < bits / 32; w++) {
    LLVMValueRef at = kva_ll_i64(e, w), x = LLVMBuildExtractElement(e->b, v, at, "");
    x = kva_ll_assembly(e, false, "mov.b32 $0, $1;", "=r,r", word, 1, &x);
    v = LLVMBuildInsertElement(e->b, v, x, at, "");
  }
  return LLVMBuildBitCast(e->b, v, type, "");
}

static LLVMValueRef load_kept(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef v = kva_ll_kept(e, i);
  if (v) v = opaque(e, v);
  if (!v) kva_ll_keep(e, i, v = kva_ll_raw_load(e, i));
  return kva_ll_from_storage(e, i->buf->dtype, v);
}

LLVMValueRef kva_ll_load(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef column = kva_ll_next_column(e, i);
  if (column) return column;
  if (kva_ll_may_keep(e, i)) return load_kept(e, i);
  LLVMValueRef pred = i->n_args ? kva_ll_use(e, i->args[0]) : NULL;
  bool branch = kva_ll_is_gpu(e) && pred && !kva_ll_is_vector(pred);
  return branch ? load_if(e, i, pred) : load_where(e, i, pred);
}

/* ---- stores ------------------------------------------------------------------------------------------------------ */

/* Two atomic operations: neighbours in the same byte may belong to other work items. */
static void store_packed(kva_emit *e, const kva_kbuf *buf, LLVMValueRef v, LLVMValueRef index) {
  LLVMTypeRef i8 = LLVMInt8TypeInContext(e->ctx);
  LLVMValueRef pointer = address(e, buf, index, true), shift = shift_of_packed(e, buf, index);
  LLVMValueRef ones = LLVMConstInt(i8, (1u << kva_dtype_bits(buf->dtype)) - 1, false);
  LLVMValueRef keep = LLVMBuildNot(e->b, LLVMBuildShl(e->b, ones, shift, ""), "");
  LLVMValueRef bits = LLVMBuildShl(e->b, LLVMBuildAnd(e->b, v, ones, ""), shift, "");
  LLVMBuildAtomicRMW(e->b, LLVMAtomicRMWBinOpAnd, pointer, keep, LLVMAtomicOrderingMonotonic, false);
  LLVMBuildAtomicRMW(e->b, LLVMAtomicRMWBinOpOr, pointer, bits, LLVMAtomicOrderingMonotonic, false);
}

static void store_scalar(kva_emit *e, const kva_kinstr *i, LLVMValueRef v) {
  LLVMValueRef index = kva_ll_expr(e, i->index);
  if (is_packed(i->buf))
    store_packed(e, i->buf, v, index);
  else
    plain_store(e, i, v, address(e, i->buf, index, true));
}

static void store_lanes(kva_emit *e, const kva_kinstr *i, LLVMValueRef v, LLVMValueRef mask) {
  bool contiguous = reach_of(e, i) == CONTIGUOUS;
  LLVMValueRef index = contiguous ? kva_ll_expr(e, i->index) : kva_ll_expr_lanes(e, i->index);
  LLVMValueRef pointer = address(e, i->buf, index, !mask);
  v = kva_ll_splat(e, v, e->lanes.n);
  if (contiguous && !mask) {
    fetch_ahead(e, i, pointer);
    plain_store(e, i, v, pointer);
    return;
  }
  masked_store(e, i->buf, v, pointer, mask ? kva_ll_splat(e, mask, e->lanes.n) : all_lanes(e, e->lanes.n));
}

static void store_where(kva_emit *e, const kva_kinstr *i, LLVMValueRef v, LLVMValueRef pred) {
  if (reach_of(e, i) == UNIFORM && !kva_ll_is_vector(v) && !pred)
    store_scalar(e, i, v);
  else
    store_lanes(e, i, v, kva_ll_and(e, e->lanes.mask, pred));
}

void kva_ll_store(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef pred = i->n_args > 1 ? kva_ll_use(e, i->args[1]) : NULL;
  LLVMValueRef v = kva_ll_to_storage(e, i->buf->dtype, kva_ll_use(e, i->args[0]));
  bool uniform_pred = pred && !kva_ll_is_vector(pred);
  bool scalar = reach_of(e, i) == UNIFORM && !kva_ll_is_vector(v);
  if (!uniform_pred || (!scalar && !kva_ll_is_gpu(e))) {
    store_where(e, i, v, pred);
    return;
  }
  LLVMBasicBlockRef then = kva_ll_block(e, "store"), done = kva_ll_block(e, "stored");
  LLVMBuildCondBr(e->b, pred, then, done);
  LLVMPositionBuilderAtEnd(e->b, then);
  store_where(e, i, v, NULL);
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
}
