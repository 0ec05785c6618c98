/* Devices with their own memory: what a run copies to them and back.
 *
 * States live in both memories. The host's copy is current at creation, and after a caller has asked for a state since
 * the last run. The next run then copies states to the device, since the caller may have written them. Inputs may stay
 * on the device from run to run. */
#include "runtime/session.h"

#include <stdlib.h>

void *kva_device_state(const kva_session *s, int32_t index) {
  if (!kva_session_holds(s, index)) return NULL;
  return kva_block_at(&s->device_states, (char *)s->states[index].data - (char *)s->state_memory.data);
}

static kva_status copy_in(kva_session *s, const kva_program *p, void *to, const void *from, int64_t bytes) {
  kva_status status = bytes ? s->device->class->copy_in(s->device, to, from, bytes) : KVA_OK;
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, p, "copying to memory");
}

static kva_status copy_out(kva_session *s, const kva_program *p, void *to, const void *from, int64_t bytes) {
  kva_status status = bytes ? s->device->class->copy_out(s->device, to, from, bytes) : KVA_OK;
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, p, "copying from memory");
}

kva_status kva_transfer_plan(kva_session *s, kva_program_state *sp) {
  const kva_program *p = sp->desc;
  if (!p->is_internal) KVA_TRY(kva_session_grow(s, p, "inputs and outputs", &sp->outputs, sp->output_bytes));
  if (sp->constants.bytes >= sp->constant_bytes) return KVA_OK; /* they are there: their sizes are constants, too */
  KVA_TRY(kva_session_grow(s, p, "constants", &sp->constants, sp->constant_bytes));
  for (int32_t i = 0; i < p->n_buffers; i++)
    if (p->buffers[i].kind == KVA_BUFFER_CONST)
      KVA_TRY(copy_in(s, p, kva_block_at(&sp->constants, sp->offsets[i]), p->buffers[i].data, sp->bytes[i]));
  return KVA_OK;
}

static void point_at_device(kva_program_state *sp) {
  for (int32_t i = 0; i < sp->desc->n_buffers; i++) {
    int32_t kind = sp->desc->buffers[i].kind;
    if ((kind == KVA_BUFFER_INPUT || kind == KVA_BUFFER_OUTPUT) && !sp->buffer_segments[i] && !sp->resident[i])
      sp->pointers[i] = kva_block_at(&sp->outputs, sp->offsets[i]);
  }
}

static kva_status send_states(kva_session *s, const kva_program *p) {
  if (!s->host_states) return KVA_OK;
  for (int32_t i = 0; i < s->artifact->n_states; i++)
    if (kva_session_holds(s, i))
      KVA_TRY(copy_in(s, p, kva_device_state(s, i), s->states[i].data, s->artifact->states[i].bytes));
  s->host_states = false;
  return KVA_OK;
}

kva_status kva_transfer_in(kva_session *s, kva_program_state *sp, const kva_tensor *inputs) {
  const kva_program *p = sp->desc;
  point_at_device(sp);
  KVA_TRY(send_states(s, p));
  for (int32_t i = 0; i < p->n_inputs; i++) {
    int32_t b = p->inputs[i];
    if (sp->resident[b])
      sp->pointers[b] = inputs[i].data;
    else
      KVA_TRY(copy_in(s, p, sp->pointers[b], inputs[i].data, sp->bytes[b]));
  }
  s->device_newer = true;
  return KVA_OK;
}

/* Aligned bytes of an output in the host's memory. */
static bool own_bytes(const kva_program_state *sp, int32_t output, int64_t *out_size) {
  int32_t b = sp->desc->outputs[output];
  return kva_align_size(sp->resident[b] ? 0 : sp->bytes[b], out_size);
}

/* Outputs that the caller leaves to the session are placed one after the other in host_outputs. */
static kva_status lend_outputs(kva_session *s, kva_program_state *sp, kva_tensor *outputs) {
  const kva_program *p = sp->desc;
  int64_t total = 0, size;
  for (int32_t i = 0; i < p->n_outputs; i++)
    if (!own_bytes(sp, i, &size) || !kva_add_size(total, size, &total))
      return kva_session_fail(s, KVA_NO_MEMORY, "%s: outputs need more memory than can be addressed", p->name);
  if (sp->host_outputs.bytes < total) {
    kva_block_destroy(&sp->host_outputs);
    if (kva_block_create(total, &sp->host_outputs))
      return kva_session_fail(s, KVA_NO_MEMORY, "%s: no memory for %.1f MiB of outputs", p->name,
                              (double)total / (1 << 20));
  }
  int64_t next = 0;
  for (int32_t i = 0; i < p->n_outputs; i++) {
    if (!outputs[i].data) outputs[i].data = kva_block_at(&sp->host_outputs, next);
    if (own_bytes(sp, i, &size)) next += size;
  }
  return KVA_OK;
}

kva_status kva_transfer_out(kva_session *s, kva_program_state *sp, kva_tensor *outputs) {
  const kva_program *p = sp->desc;
  for (int32_t i = 0; i < p->n_outputs; i++) KVA_TRY(kva_session_output(s, sp, i, &outputs[i]));
  KVA_TRY(lend_outputs(s, sp, outputs));
  for (int32_t i = 0; i < p->n_outputs; i++)
    if (!sp->resident[p->outputs[i]])
      KVA_TRY(copy_out(s, p, outputs[i].data, sp->pointers[p->outputs[i]], sp->bytes[p->outputs[i]]));
  return KVA_OK;
}

kva_status kva_transfer_states(kva_session *s) {
  s->states_lent = true;
  if (s->device->class->host_memory) return KVA_OK;
  for (int32_t i = 0; s->device_newer && i < s->artifact->n_states; i++)
    if (kva_session_holds(s, i))
      KVA_TRY(copy_out(s, NULL, s->states[i].data, kva_device_state(s, i), s->artifact->states[i].bytes));
  s->device_newer = false;
  s->host_states = true;
  return KVA_OK;
}

/* ---- inputs that stay there -------------------------------------------------------------------------------------- */

kva_status kva_resident_allocate(kva_session *s, int64_t bytes, kva_block *out_block) {
  *out_block = (kva_block){0};
  kva_block *blocks = realloc(s->resident, ((size_t)s->n_resident + 1) * sizeof *blocks);
  if (!blocks) return KVA_NO_MEMORY;
  s->resident = blocks;
  KVA_TRY(s->device->class->allocate(s->device, bytes, out_block));
  s->resident[s->n_resident++] = *out_block;
  return KVA_OK;
}

void kva_resident_free(kva_session *s, kva_block *block) {
  for (int32_t i = 0; i < s->n_resident; i++)
    if (s->resident[i].data == block->data) s->resident[i--] = s->resident[--s->n_resident];
  s->device->class->free(s->device, block);
}

kva_status kva_resident_write(kva_session *s, void *to, const void *from, size_t bytes) {
  return copy_in(s, NULL, to, from, (int64_t)bytes);
}

kva_status kva_resident_read(kva_session *s, void *to, const void *from, size_t bytes) {
  return copy_out(s, NULL, to, from, (int64_t)bytes);
}

kva_status kva_resident_copy(kva_session *s, void *to, const void *from, size_t bytes) {
  kva_status status = bytes ? s->device->class->copy(s->device, to, from, (int64_t)bytes) : KVA_OK;
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, NULL, "copying in memory");
}

static bool is_resident(const kva_session *s, const void *data) {
  for (int32_t i = 0; i < s->n_resident; i++) {
    uintptr_t begin = (uintptr_t)s->resident[i].data, at = (uintptr_t)data;
    if (begin && at >= begin && at - begin < (uintptr_t)s->resident[i].bytes) return true;
  }
  return false;
}

void kva_resident_note(kva_session *s, kva_program_state *sp, const kva_tensor *inputs) {
  if (s->device->class->host_memory) return;
  for (int32_t i = 0; i < sp->desc->n_inputs; i++) {
    bool *resident = &sp->resident[sp->desc->inputs[i]], now = is_resident(s, inputs[i].data);
    if (*resident != now) sp->segments[0].planned = false;
    *resident = now;
  }
}
