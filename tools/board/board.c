/* See board.h. A file is a sequence of records: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of
 * the data, all little endian; data is a BoardEvent. Masking is a rotation and a sum, so that sums of data that hold
 * sums are not degenerate. */
#include "tools/board/board.h"

#include "events.pb-c.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct kva_board {
  char *folder;
  FILE *file;
};

kva_board *kva_board_create(const char *folder) {
  kva_board *b = calloc(1, sizeof *b);
  if (b) b->folder = strdup(folder);
  if (b && b->folder) return b;
  kva_board_destroy(b);
  return NULL;
}

void kva_board_destroy(kva_board *b) {
  if (!b) return;
  if (b->file) fclose(b->file);
  free(b->folder);
  free(b);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli, reflected), bit by bit: records are short. */
static uint32_t masked_sum(const void *data, size_t n) {
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < n; i++) {
    crc ^= ((const unsigned char *)data)[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static kva_status io_error(const kva_board *b, const char *doing, kva_diag *diag) {
  return kva_fail(diag, KVA_IO, &(kva_loc){.file = b->folder}, "cannot %s: %s", doing, strerror(errno));
}

static kva_status write_record(kva_board *b, const uint8_t *data, size_t n, kva_diag *diag) {
  const uint64_t length = n;
  const uint32_t of_length = masked_sum(&length, sizeof length), of_data = masked_sum(data, n);
  bool ok = fwrite(&length, sizeof length, 1, b->file) == 1 && fwrite(&of_length, sizeof of_length, 1, b->file) == 1 &&
            fwrite(data, 1, n, b->file) == n && fwrite(&of_data, sizeof of_data, 1, b->file) == 1 && !fflush(b->file);
  return ok ? KVA_OK : io_error(b, "write an event file in it", diag);
}

static kva_status write_event(kva_board *b, BoardEvent *event, kva_diag *diag) {
  struct timeval now;
  gettimeofday(&now, NULL);
  event->has_wall_time = true;
  event->wall_time = (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
  uint8_t *data = malloc(board_event__get_packed_size(event) + 1);
  if (!data) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for an event");
  kva_status status = write_record(b, data, board_event__pack(event, data), diag);
  free(data);
  return status;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* The first event gives the version, the second says where the run starts. */
static kva_status begin(kva_board *b, int64_t resumed, kva_diag *diag) {
  char host[64] = "localhost", *path = NULL;
  (void)gethostname(host, sizeof host - 1);
  KVA_TRY(kva_folder_make(b->folder, 0777, diag));
  if (asprintf(&path, "%s/events.out.tfevents.%010lld.%s.%ld", b->folder, (long long)time(NULL), host, (long)getpid()) <
      0)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a name");
  b->file = fopen(path, "we");
  free(path);
  if (!b->file) return io_error(b, "make an event file in it", diag);
  BoardEvent version = BOARD_EVENT__INIT, start = BOARD_EVENT__INIT;
  BoardSession session = BOARD_SESSION__INIT;
  version.file_version = (char[]){"brain.Event:2"};
  KVA_TRY(write_event(b, &version, diag));
  session.has_status = start.has_step = true;
  session.status = 1;
  start.step = resumed + 1;
  start.session_log = &session;
  return resumed ? write_event(b, &start, diag) : KVA_OK;
}

static kva_status add_values(kva_board *b, const kva_train_event *e, size_t n, BoardValue *values, BoardValue **list,
                             kva_text *tags, kva_diag *diag) {
  BoardEvent event = BOARD_EVENT__INIT;
  BoardSummary summary = BOARD_SUMMARY__INIT;
  for (size_t i = 0; i < n; i++) {
    bool rate = i == (size_t)e->n;
    kva_text_add(&tags[i], "%s/%s", e->evaluation ? "eval" : "train", rate ? "lr" : i ? e->names[i] : "loss");
    board_value__init(&values[i]);
    values[i].tag = tags[i].data;
    values[i].has_simple_value = true;
    values[i].simple_value = (float)(rate ? e->lr : e->values[i]);
    list[i] = &values[i];
  }
  summary.n_value = n;
  summary.value = list;
  event.has_step = true;
  event.step = e->step;
  event.summary = &summary;
  return write_event(b, &event, diag);
}

kva_status kva_board_add(kva_board *b, const kva_train_event *e, int64_t resumed, kva_diag *diag) {
  if (!b->file) KVA_TRY(begin(b, resumed, diag));
  size_t n = (size_t)e->n + !e->evaluation; /* the rate is the last value of a step */
  BoardValue *values = calloc(n + 1, sizeof *values), **list = calloc(n + 1, sizeof *list);
  kva_text *tags = calloc(n + 1, sizeof *tags);
  kva_status status = values && list && tags ? add_values(b, e, n, values, list, tags, diag)
                                             : kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for an event");
  for (size_t i = 0; tags && i < n; i++) kva_text_free(&tags[i]);
  free(values);
  free(list);
  free(tags);
  return status;
}
