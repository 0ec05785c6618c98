/* Figures of an experiment as HTML. */
#ifndef KVA_TOOLS_EXPERIMENT_FIGURES_H
#define KVA_TOOLS_EXPERIMENT_FIGURES_H

#include "tools/experiment/experiment.h"

/* A plot of the file, in the arena; r: the report with the curves of the runs. *out is NULL for a plot that is a
 * section of its own (shift scalars) or has no data. */
KVA_MUST_USE kva_status kva_exp_figure(const kva_exp_outcome *o, const kva_exp_plot *plot, const kva_report *r,
                                       kva_arena *arena, kva_diag *diag, const char **out);

#endif
