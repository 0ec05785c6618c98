/* A command line in several processes of one run. Rank 0 prints, writes files and reads checkpoints; the others
 * compute. */
#ifndef KVA_RUNTIME_EXE_PROCESSES_H
#define KVA_RUNTIME_EXE_PROCESSES_H

#include "runtime/comm.h"
#include "runtime/exe/train.h"

/* Joins the processes of the mesh: NULL where that is 1, with a warning where a launcher started more. What
 * ranks other than 0 print goes to logs/rank-N.log, or nowhere if logs is NULL; errors go to standard error.
 * KVA_INVALID: another number of processes was started; the message says how to start them. */
KVA_MUST_USE kva_status kva_processes_join(const kva_comm_mesh *mesh, const char *logs, kva_diag *diag,
                                           kva_comm **out_comm);
/* Whether rank 0 reports the failure that all processes have: then this one is quiet about it, from here on. */
void kva_processes_quieten(const kva_comm *c);
/* Fails in all processes, by name of what differs, unless they are to do the same: program, target, model, data,
 * settings, initial states. */
KVA_MUST_USE kva_status kva_processes_compare(kva_session *s, const kva_train_settings *o, const kva_train_options *t,
                                              uint64_t data, kva_trainer *trainer, kva_diag *diag);

#endif
