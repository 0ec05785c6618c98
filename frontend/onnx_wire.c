/* The parts of the protobuf wire format that protobuf-c does not cover: bounded nesting (its parser recurses with the
 * input, so a small hostile file could exhaust the stack) and models without their large initialisers (its parser
 * copies). */
#include "frontend/onnx_proto.h"

#include <stdlib.h>

enum { MAX_NESTING = 64 };

typedef struct wire {
  const uint8_t *at, *end;
} wire;

/* One field; `body` is the payload of a length-prefixed field. */
typedef struct field {
  uint32_t number, type;
  wire body;
} field;

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static bool read_varint(wire *w, uint64_t *out) {
  uint64_t v = 0;
  for (int shift = 0; shift < 64 && w->at < w->end; shift += 7) {
    uint8_t byte = *w->at++;
    v |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) {
      *out = v;
      return true;
    }
  }
  return false;
}

static bool skip(wire *w, uint64_t n) {
  if (n > (uint64_t)(w->end - w->at)) return false;
  w->at += n;
  return true;
}

static bool read_field(wire *w, field *out) {
  uint64_t key, n;
  if (!read_varint(w, &key) || key >> 3 == 0 || key >> 3 > 0x1fffffff) return false;
  *out = (field){.number = (uint32_t)(key >> 3), .type = key & 7, .body = {w->at, w->at}};
  switch (out->type) {
  case WIRE_VARINT: return read_varint(w, &n);
  case WIRE_64: return skip(w, 8);
  case WIRE_32: return skip(w, 4);
  case WIRE_BYTES:
    if (!read_varint(w, &n)) return false;
    out->body.at = w->at;
    if (!skip(w, n)) return false;
    out->body.end = w->at;
    return true;
  default: return false;
  }
}

/* NULL if the message is well-formed, else the reason; *bad is the position. */
static const char *check_message(const ProtobufCMessageDescriptor *type, wire w, int depth, const uint8_t **bad) {
  if (depth > MAX_NESTING) return *bad = w.at, "messages are nested more than 64 deep";
  while (w.at < w.end) {
    field f;
    *bad = w.at;
    if (!read_field(&w, &f)) return "a field is cut off or has an invalid tag";
    const ProtobufCFieldDescriptor *d = protobuf_c_message_descriptor_get_field(type, f.number);
    if (!d || d->type != PROTOBUF_C_TYPE_MESSAGE || f.type != WIRE_BYTES) continue;
    const char *problem = check_message(d->descriptor, f.body, depth + 1, bad);
    if (problem) return problem;
  }
  return NULL;
}

/* protobuf-c does not tell a wrong message from one that it had no memory for; its allocator does. */
static void *allocate(void *failed, size_t size) {
  void *p = malloc(size);
  if (!p) *(bool *)failed = true;
  return p;
}

static void release(void *failed, void *p) {
  (void)failed;
  free(p);
}

static kva_status check(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size, const char *what,
                        const kva_loc *loc, kva_diag *diag) {
  const uint8_t *bad = bytes;
  const char *problem = size ? check_message(type, (wire){bytes, bytes + size}, 0, &bad) : "the file is empty";
  if (!problem) return KVA_OK;
  return kva_error(diag, loc, "not an ONNX %s: at byte %zu: %s", what, size ? (size_t)(bad - bytes) : 0, problem);
}

static kva_status unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size, const char *what,
                         const kva_loc *loc, kva_diag *diag, ProtobufCMessage **out) {
  bool failed = false; /* what the message holds is freed by protobuf-c's own allocator, which is free(), too */
  *out = protobuf_c_message_unpack(type, &(ProtobufCAllocator){allocate, release, &failed}, size, bytes);
  if (!*out && failed) return kva_fail(diag, KVA_NO_MEMORY, loc, "no memory for an ONNX %s of %zu bytes", what, size);
  if (!*out)
    return kva_error(diag, loc, "not an ONNX %s: a field has another type than the ONNX schema gives it", what);
  return KVA_OK;
}

kva_status kva_pb_unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t size, const char *what,
                         const kva_loc *loc, kva_diag *diag, ProtobufCMessage **out) {
  *out = NULL;
  KVA_TRY(check(type, data, size, what, loc, diag));
  return unpack(type, data, size, what, loc, diag, out);
}

/* ---- large initialisers ------------------------------------------------------------------------------------------ */

enum { MODEL_GRAPH = 7, GRAPH_INITIALIZER = 5, TENSOR_RAW_DATA = 9, CUT_FROM = 4096 };

/* Finds length-prefixed field `number`; returns the number of occurrences. */
static int find_field(wire w, uint32_t number, wire *out) {
  int found = 0;
  field f;
  while (w.at < w.end && read_field(&w, &f)) {
    if (f.number != number || f.type != WIRE_BYTES) continue;
    *out = f.body;
    found++;
  }
  return found;
}

/* Raw data that are worth cutting out; of several parts the last one holds, and all stay. */
static bool find_large_raw(wire tensor, wire *out) {
  return find_field(tensor, TENSOR_RAW_DATA, out) == 1 && out->end - out->at >= CUT_FROM;
}

/* What is written so far; `to` NULL: counted alone. */
typedef struct written {
  uint8_t *to;
  size_t n;
} written;

static void put(written *x, const uint8_t *from, size_t n) {
  if (x->to) memcpy(x->to + x->n, from, n);
  x->n += n;
}

static void put_varint(written *x, uint64_t v) {
  do {
    uint8_t byte = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
    put(x, &byte, 1);
    v >>= 7;
  } while (v);
}

typedef void put_fn(written *x, wire w);

/* A message, with its messages in field `number` written by put_part. */
static void put_message(written *x, wire w, uint32_t number, put_fn *put_part) {
  field f;
  for (const uint8_t *begin = w.at; w.at < w.end && read_field(&w, &f); begin = w.at) {
    if (f.number != number || f.type != WIRE_BYTES) {
      put(x, begin, (size_t)(w.at - begin));
      continue;
    }
    written part = {0};
    put_part(&part, f.body);
    put_varint(x, (uint64_t)number << 3 | WIRE_BYTES);
    put_varint(x, part.n);
    if (x->to)
      put_part(x, f.body);
    else
      x->n += part.n;
  }
}

static void put_tensor(written *x, wire w) {
  wire raw;
  bool cut = find_large_raw(w, &raw);
  field f;
  for (const uint8_t *begin = w.at; w.at < w.end && read_field(&w, &f); begin = w.at)
    if (!cut || f.number != TENSOR_RAW_DATA || f.type != WIRE_BYTES) put(x, begin, (size_t)(w.at - begin));
}

static void put_graph(written *x, wire w) {
  put_message(x, w, GRAPH_INITIALIZER, put_tensor);
}

static void put_model(written *x, wire w) {
  put_message(x, w, MODEL_GRAPH, put_graph);
}

static kva_pb_raw *locate_raw(wire graph, kva_arena *arena) {
  size_t n = 0;
  field f;
  wire raw;
  for (wire w = graph; w.at < w.end && read_field(&w, &f);) n += f.number == GRAPH_INITIALIZER && f.type == WIRE_BYTES;
  kva_pb_raw *out = KVA_NEW_ARRAY(arena, kva_pb_raw, n + 1);
  for (size_t i = 0; graph.at < graph.end && read_field(&graph, &f);) {
    if (f.number != GRAPH_INITIALIZER || f.type != WIRE_BYTES) continue;
    if (find_large_raw(f.body, &raw)) out[i] = (kva_pb_raw){.data = raw.at, .size = (size_t)(raw.end - raw.at)};
    i++;
  }
  return out;
}

kva_status kva_pb_unpack_model(const void *data, size_t size, const kva_loc *loc, kva_arena *arena, kva_diag *diag,
                               kva_pb_model **out, kva_pb_raw **out_raw) {
  const ProtobufCMessageDescriptor *type = &onnx__model_proto__descriptor;
  ProtobufCMessage *message = NULL;
  wire model = {data, (const uint8_t *)data + size}, graph;
  *out = NULL, *out_raw = NULL;
  KVA_TRY(check(type, data, size, "model", loc, diag));
  written light = {0};
  bool usual = find_field(model, MODEL_GRAPH, &graph) == 1; /* parts of a graph are put together by protobuf-c */
  if (usual) put_model(&light, model);
  if (!usual || light.n == size) {
    KVA_TRY(unpack(type, data, size, "model", loc, diag, &message));
    return *out = (kva_pb_model *)message, KVA_OK;
  }
  uint8_t *bytes = malloc(light.n + 1);
  if (!bytes) return kva_fail(diag, KVA_NO_MEMORY, loc, "no memory for an ONNX model of %zu bytes", light.n);
  light = (written){.to = bytes};
  put_model(&light, model);
  kva_status status = unpack(type, bytes, light.n, "model", loc, diag, &message);
  free(bytes);
  if (!status) *out = (kva_pb_model *)message, *out_raw = locate_raw(graph, arena);
  return status;
}
