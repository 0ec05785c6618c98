/* Memory of a GPU. Host copies go through pinned slots: callers' memory may be pageable and belongs to the caller again
 * when a call returns, while the device accesses the slot later. */
#include "runtime/cuda/cuda.h"

kva_status kva_cuda_create_slots(cuda_device *d) {
  for (int i = 0; i < CUDA_SLOTS; i++) {
    KVA_TRY(kva_cuda_check(d, d->api.cuMemAllocHost(&d->slots[i].host, CUDA_SLOT_BYTES), "cuMemAllocHost"));
    KVA_TRY(kva_cuda_check(d, d->api.cuEventCreate(&d->slots[i].done, 0), "cuEventCreate"));
  }
  return KVA_OK;
}

void kva_cuda_destroy_slots(cuda_device *d) {
  for (int i = 0; i < CUDA_SLOTS; i++) {
    if (d->slots[i].done) d->api.cuEventDestroy(d->slots[i].done);
    if (d->slots[i].host) d->api.cuMemFreeHost(d->slots[i].host);
  }
}

kva_status kva_cuda_allocate(kva_device *device, int64_t bytes, kva_block *out_block) {
  cuda_device *d = (cuda_device *)device;
  *out_block = (kva_block){0};
  if (!bytes) return KVA_OK;
  KVA_TRY(kva_cuda_enter(d));
  cu_pointer p;
  KVA_TRY(kva_cuda_check(d, d->api.cuMemAlloc(&p, (size_t)bytes), "cuMemAlloc"));
  *out_block = (kva_block){.data = (void *)(uintptr_t)p, .bytes = bytes};
  return KVA_OK;
}

void kva_cuda_free(kva_device *device, kva_block *block) {
  cuda_device *d = (cuda_device *)device;
  if (block->data && kva_cuda_enter(d) == KVA_OK) {
    d->api.cuStreamSynchronize(d->stream); /* kernels may still use it */
    d->api.cuMemFree(kva_cuda_address(block->data));
  }
  *block = (kva_block){0};
}

static kva_status take_slot(cuda_device *d, cuda_slot **out_slot) {
  cuda_slot *slot = *out_slot = &d->slots[d->next_slot];
  d->next_slot = (d->next_slot + 1) % CUDA_SLOTS;
  if (!slot->busy) return KVA_OK;
  slot->busy = false;
  return kva_cuda_check(d, d->api.cuEventSynchronize(slot->done), "cuEventSynchronize");
}

static size_t piece(int64_t bytes, int64_t done) {
  return (size_t)(bytes - done < CUDA_SLOT_BYTES ? bytes - done : CUDA_SLOT_BYTES);
}

kva_status kva_cuda_copy_in(kva_device *device, void *to, const void *from, int64_t bytes) {
  cuda_device *d = (cuda_device *)device;
  KVA_TRY(kva_cuda_enter(d));
  for (int64_t at = 0; at < bytes; at += CUDA_SLOT_BYTES) {
    cuda_slot *slot;
    KVA_TRY(take_slot(d, &slot));
    memcpy(slot->host, (const char *)from + at, piece(bytes, at));
    slot->busy = true;
    cu_pointer p = kva_cuda_address(to) + (cu_pointer)at;
    KVA_TRY(
        kva_cuda_check(d, d->api.cuMemcpyHtoDAsync(p, slot->host, piece(bytes, at), d->stream), "cuMemcpyHtoDAsync"));
    KVA_TRY(kva_cuda_check(d, d->api.cuEventRecord(slot->done, d->stream), "cuEventRecord"));
  }
  return KVA_OK;
}

/* A piece in flight to a slot. */
typedef struct arrival {
  cuda_slot *slot;
  char *to;
  size_t bytes;
} arrival;

static kva_status receive(cuda_device *d, const arrival *a) {
  if (!a->slot) return KVA_OK;
  KVA_TRY(kva_cuda_check(d, d->api.cuEventSynchronize(a->slot->done), "cuEventSynchronize"));
  memcpy(a->to, a->slot->host, a->bytes);
  return KVA_OK;
}

/* Double-buffered: the host copies one piece while the device sends the next. */
kva_status kva_cuda_copy_out(kva_device *device, void *to, const void *from, int64_t bytes) {
  cuda_device *d = (cuda_device *)device;
  KVA_TRY(kva_cuda_enter(d));
  arrival last = {0};
  for (int64_t at = 0; at < bytes; at += CUDA_SLOT_BYTES) {
    arrival next = {.to = (char *)to + at, .bytes = piece(bytes, at)};
    KVA_TRY(take_slot(d, &next.slot));
    cu_pointer p = kva_cuda_address(from) + (cu_pointer)at;
    KVA_TRY(
        kva_cuda_check(d, d->api.cuMemcpyDtoHAsync(next.slot->host, p, next.bytes, d->stream), "cuMemcpyDtoHAsync"));
    KVA_TRY(kva_cuda_check(d, d->api.cuEventRecord(next.slot->done, d->stream), "cuEventRecord"));
    KVA_TRY(receive(d, &last));
    last = next;
  }
  return receive(d, &last);
}

kva_status kva_cuda_copy(kva_device *device, void *to, const void *from, int64_t bytes) {
  cuda_device *d = (cuda_device *)device;
  KVA_TRY(kva_cuda_enter(d));
  if (!bytes || to == from) return KVA_OK;
  return kva_cuda_check(
      d, d->api.cuMemcpyDtoDAsync(kva_cuda_address(to), kva_cuda_address(from), (size_t)bytes, d->stream),
      "cuMemcpyDtoDAsync");
}
