/* The parts of the protobuf wire format that protobuf-c does not cover: bounded nesting (its parser recurses with the
 * input, so a small hostile file could exhaust the stack) and the location of raw tensor data in the file (its parser
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

kva_status kva_pb_unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t size, const char *what,
                         const kva_loc *loc, kva_diag *diag, ProtobufCMessage **out) {
  const uint8_t *bytes = data, *bad = bytes;
  *out = NULL;
  const char *problem = size ? check_message(type, (wire){bytes, bytes + size}, 0, &bad) : "the file is empty";
  if (problem)
    return kva_error(diag, loc, "not an ONNX %s: at byte %zu: %s", what, size ? (size_t)(bad - bytes) : 0, problem);
  bool failed = false; /* what the message holds is freed by protobuf-c's own allocator, which is free(), too */
  *out = protobuf_c_message_unpack(type, &(ProtobufCAllocator){allocate, release, &failed}, size, bytes);
  if (!*out && failed) return kva_fail(diag, KVA_NO_MEMORY, loc, "no memory for an ONNX %s of %zu bytes", what, size);
  if (!*out)
    return kva_error(diag, loc, "not an ONNX %s: a field has another type than the ONNX schema gives it", what);
  return KVA_OK;
}

enum { MODEL_GRAPH = 7, GRAPH_INITIALIZER = 5, TENSOR_RAW_DATA = 9 };

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

bool kva_pb_locate_raw(const void *data, size_t size, size_t n_initializers, const void **out) {
  wire model = {data, (const uint8_t *)data + size}, graph, raw;
  if (find_field(model, MODEL_GRAPH, &graph) != 1) return false;
  size_t i = 0;
  field f;
  while (graph.at < graph.end && read_field(&graph, &f)) {
    if (f.number != GRAPH_INITIALIZER || f.type != WIRE_BYTES) continue;
    if (i == n_initializers) return false;
    int found = find_field(f.body, TENSOR_RAW_DATA, &raw);
    if (found > 1) return false;
    out[i++] = found ? raw.at : NULL;
  }
  return i == n_initializers;
}
