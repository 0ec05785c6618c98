/* A stand-in for NCCL: what device cuda calls, between processes of one machine, over Unix sockets.
 *
 * Sends and receives of a group become one operation of the stream, which happens when the stream's turn comes: until
 * then the others wait, as they do for a GPU. Every message says how many bytes it has, and what does not fit its
 * receive is told on stderr. As the library, it refuses two ranks on one GPU. */
#include "tests/fake_cuda/fake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
  MOST_RANKS = 64,
  PATIENCE = 30000 /* milliseconds */,
  NCCL_SYSTEM_ERROR = 2,
  NCCL_INVALID_ARGUMENT = 4,
  NCCL_INVALID_USAGE = 5
};

struct nccl_comm_object {
  int rank, size;
  int peers[MOST_RANKS]; /* sockets */
};

typedef struct transfer {
  bool sends;
  int peer;
  char *data;
  uint64_t bytes, done; /* done: with the 8 bytes that say how many there are */
  uint64_t header;
} transfer;
typedef struct transfers {
  nccl_comm comm;
  size_t n;
  transfer items[];
} transfers;

static int depth; /* of groups */
static transfers *group;
static cu_stream group_stream;

nccl_result fake_ncclGetVersion(int *out_version) {
  *out_version = 21803;
  return NCCL_SUCCESS;
}

const char *fake_ncclGetErrorString(nccl_result result) {
  switch (result) {
  case NCCL_SUCCESS: return "no error";
  case NCCL_SYSTEM_ERROR: return "unhandled system error";
  case NCCL_INVALID_ARGUMENT: return "invalid argument";
  case NCCL_INVALID_USAGE: return "invalid usage";
  default: return "unknown result code";
  }
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

nccl_result fake_ncclGetUniqueId(nccl_unique_id *out_id) {
  *out_id = (nccl_unique_id){"/tmp/fake-nccl-XXXXXX"};
  return mkdtemp(out_id->internal) ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

static struct sockaddr_un address_of(const nccl_unique_id *id, int rank) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  snprintf(a.sun_path, sizeof a.sun_path, "%.60s/%d", id->internal, rank);
  return a;
}

static int listen_as(const nccl_unique_id *id, int rank) {
  struct sockaddr_un a = address_of(id, rank);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && !bind(fd, (const struct sockaddr *)&a, sizeof a) && !listen(fd, MOST_RANKS)) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

static int connect_to(const nccl_unique_id *id, int rank) {
  struct sockaddr_un a = address_of(id, rank);
  for (int waited = 0; waited < PATIENCE; waited++) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (!connect(fd, (const struct sockaddr *)&a, sizeof a)) return fd;
    close(fd);
    usleep(1000);
  }
  return -1;
}

static bool put(int fd, const void *data, size_t n) {
  return send(fd, data, n, MSG_NOSIGNAL) == (ssize_t)n;
}
static bool get(int fd, void *data, size_t n) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, PATIENCE) == 1 && recv(fd, data, n, MSG_WAITALL) == (ssize_t)n;
}

/* Who is at the other end, and on which GPU. */
typedef struct greeting {
  int rank, gpu;
} greeting;

static nccl_result meet(nccl_comm c, const nccl_unique_id *id, int door, bool *out_alone) {
  const greeting own = {c->rank, fake_ordinal()};
  greeting other;
  for (int r = 0; r < c->size; r++) {
    if (r == c->rank) continue;
    int fd = r < c->rank ? connect_to(id, r) : accept(door, NULL, NULL);
    if (fd < 0 || !put(fd, &own, sizeof own) || !get(fd, &other, sizeof other)) return NCCL_SYSTEM_ERROR;
    if (other.rank < 0 || other.rank >= c->size || c->peers[other.rank] >= 0) return NCCL_INVALID_ARGUMENT;
    c->peers[other.rank] = fd;
    *out_alone &= other.gpu != own.gpu;
  }
  return NCCL_SUCCESS;
}

/* The folder goes with the last socket: rank 0 hears that all others are gone. */
static void leave_folder(nccl_comm c, const nccl_unique_id *id) {
  struct sockaddr_un a = address_of(id, c->rank);
  char gone = 1;
  unlink(a.sun_path);
  if (c->rank && c->peers[0] >= 0) (void)put(c->peers[0], &gone, 1);
  for (int r = 1; !c->rank && r < c->size; r++)
    if (c->peers[r] >= 0) (void)get(c->peers[r], &gone, 1);
  if (!c->rank) rmdir(id->internal);
}

nccl_result fake_ncclCommInitRank(nccl_comm *out_comm, int size, nccl_unique_id id, int rank) {
  *out_comm = NULL;
  if (fake_state() || size < 1 || size > MOST_RANKS || rank < 0 || rank >= size) return NCCL_INVALID_ARGUMENT;
  nccl_comm c = calloc(1, sizeof *c);
  if (!c) return NCCL_SYSTEM_ERROR;
  *c = (struct nccl_comm_object){.rank = rank, .size = size};
  for (int r = 0; r < MOST_RANKS; r++) c->peers[r] = -1;
  bool alone = true;
  int door = listen_as(&id, rank);
  nccl_result result = door < 0 ? NCCL_SYSTEM_ERROR : meet(c, &id, door, &alone);
  if (door >= 0) close(door);
  leave_folder(c, &id);
  if (result == NCCL_SUCCESS && !alone) result = NCCL_INVALID_USAGE;
  if (result == NCCL_SUCCESS)
    *out_comm = c;
  else
    (void)fake_ncclCommDestroy(c);
  return result;
}

nccl_result fake_ncclCommDestroy(nccl_comm c) {
  fake_wait(NULL);
  for (int r = 0; r < c->size; r++)
    if (c->peers[r] >= 0) close(c->peers[r]);
  free(c);
  return NCCL_SUCCESS;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

nccl_result fake_ncclGroupStart(void) {
  depth++;
  return NCCL_SUCCESS;
}

nccl_result fake_ncclGroupEnd(void) {
  if (!depth) return NCCL_INVALID_USAGE;
  if (--depth || !group) return NCCL_SUCCESS;
  const fake_op op = {.kind = FAKE_TRANSFER, .params = (unsigned char *)group};
  group = NULL;
  return fake_enqueue(group_stream, &op) == CU_SUCCESS ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

static nccl_result add(bool sends, void *data, size_t bytes, int type, int peer, nccl_comm c, cu_stream stream) {
  if (type != NCCL_UINT8 || peer < 0 || peer >= c->size || peer == c->rank || !fake_is_device(data, bytes) ||
      fake_capturing() || (group && (group->comm != c || group_stream != stream)))
    return NCCL_INVALID_ARGUMENT;
  size_t n = group ? group->n : 0;
  transfers *more = realloc(group, sizeof *more + (n + 1) * sizeof *more->items);
  if (!more) return NCCL_SYSTEM_ERROR;
  group = more;
  group_stream = stream;
  group->comm = c;
  group->n = n + 1;
  group->items[n] = (transfer){.sends = sends, .peer = peer, .data = data, .bytes = bytes, .header = sends ? bytes : 0};
  depth++;
  return fake_ncclGroupEnd();
}

nccl_result fake_ncclSend(const void *data, size_t n, int type, int peer, nccl_comm comm, cu_stream stream) {
  return add(true, (void *)(uintptr_t)data, n, type, peer, comm, stream);
}

nccl_result fake_ncclRecv(void *data, size_t n, int type, int peer, nccl_comm comm, cu_stream stream) {
  return add(false, data, n, type, peer, comm, stream);
}

/* ---- transfer ---------------------------------------------------------------------------------------------------- */

/* The first one in a direction between this process and a peer that is not through; NULL: none. */
static transfer *next_of(transfers *t, int peer, bool sends) {
  for (size_t i = 0; i < t->n; i++) {
    transfer *x = &t->items[i];
    if (x->peer == peer && x->sends == sends && x->done < x->bytes + sizeof x->header) return x;
  }
  return NULL;
}

/* Moves what can be moved now; false: the other end is gone, or says what this one does not. */
static bool move(transfer *x, int fd) {
  bool in_header = x->done < sizeof x->header;
  char *at = in_header ? (char *)&x->header + x->done : x->data + (x->done - sizeof x->header);
  size_t left = in_header ? sizeof x->header - x->done : x->bytes + sizeof x->header - x->done;
  ssize_t n = x->sends ? send(fd, at, left, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, left, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  x->done += (uint64_t)n;
  if (n == 0) return false;
  if (x->sends || x->done != sizeof x->header || x->header == x->bytes) return true;
  fake_violation("%llu bytes are sent where %llu are received", (unsigned long long)x->header,
                 (unsigned long long)x->bytes);
  return false;
}

cu_result fake_transfer(const fake_op *op) {
  transfers *t = (transfers *)(void *)op->params;
  for (;;) {
    struct pollfd polls[2 * MOST_RANKS];
    transfer *items[2 * MOST_RANKS];
    nfds_t n = 0;
    for (int i = 0; i < 2 * t->comm->size; i++) {
      transfer *x = next_of(t, i / 2, i % 2);
      if (!x) continue;
      items[n] = x;
      polls[n++] = (struct pollfd){.fd = t->comm->peers[i / 2], .events = x->sends ? POLLOUT : POLLIN};
    }
    if (!n) return CU_SUCCESS;
    if (poll(polls, n, PATIENCE) <= 0) return ERROR_NOT_READY;
    for (nfds_t i = 0; i < n; i++)
      if (polls[i].revents && !move(items[i], polls[i].fd)) return ERROR_ILLEGAL_ADDRESS;
  }
}
