/* Event files for TensorBoard: the scalars of a training run. */
#ifndef KVA_TOOLS_BOARD_H
#define KVA_TOOLS_BOARD_H

#include "runtime/runtime.h"

typedef struct kva_board kva_board;

/* A run's folder, which is made if it is missing; its file is made at the first event. NULL: no memory. */
kva_board *kva_board_create(const char *folder);
/* Appends an event's values as "train/NAME" or "eval/NAME". resumed: the step that the run goes on from; what other
 * files of the folder have of later steps does not count. Every event reaches the file before the call returns. */
KVA_MUST_USE kva_status kva_board_add(kva_board *b, const kva_train_event *e, int64_t resumed, kva_diag *diag);
void kva_board_destroy(kva_board *b);

#endif
