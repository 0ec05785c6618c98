/* Collection of findings, and reports. */
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

enum { MAX_FINDINGS = 1000 }; /* distinct findings of a launch */

static kva_ptx_dim3 thread_of(const ptx_launch *launch, uint32_t linear) {
  kva_ptx_dim3 t = {linear % launch->block.x, linear / launch->block.x % launch->block.y,
                    linear / launch->block.x / launch->block.y};
  return t;
}

static kva_ptx_finding *append(ptx_cta *cta) {
  if (cta->n_findings == MAX_FINDINGS) return NULL;
  if (cta->n_findings == cta->cap_findings) {
    uint32_t cap = cta->cap_findings ? 2 * cta->cap_findings : 8;
    kva_ptx_finding *more = realloc(cta->findings, cap * sizeof *more);
    if (!more) return NULL;
    cta->findings = more;
    cta->cap_findings = cap;
  }
  return &cta->findings[cta->n_findings++];
}

kva_ptx_finding *kva_ptx_add_finding(ptx_cta *cta, kva_ptx_finding_kind kind, const ptx_ins *at, const ptx_warp *w,
                                     int lane) {
  for (uint32_t k = 0; k < cta->n_findings; k++) {
    kva_ptx_finding *f = &cta->findings[k];
    if (f->kind != kind || f->line != at->line) continue;
    f->count++;
    return NULL;
  }
  kva_ptx_finding *f = append(cta);
  if (!f) return NULL;
  *f = (kva_ptx_finding){.kind = kind, .line = at->line, .source_line = at->source_line, .count = 1, .cta = cta->id};
  f->thread = thread_of(cta->launch, w->id * PTX_LANES + (lane < 0 ? 0 : (uint32_t)lane));
  return f;
}

void kva_ptx_detail(kva_ptx_finding *finding, const char *fmt, ...) {
  if (!finding) return;
  va_list args;
  va_start(args, fmt);
  vsnprintf(finding->detail, sizeof finding->detail, fmt, args);
  va_end(args);
}

void kva_ptx_report_free(kva_ptx_report *report) {
  free(report->findings);
  free(report->lines);
  free(report->warp_executions);
  *report = (kva_ptx_report){0};
}

void kva_ptx_report_print_findings(const kva_ptx_report *report, const char *name, FILE *out) {
  for (uint32_t k = 0; k < report->n_findings; k++) {
    const kva_ptx_finding *f = &report->findings[k];
    fprintf(out, "%s:%u: %s: %s; CTA (%u,%u,%u) thread (%u,%u,%u)", name, f->line, kva_ptx_finding_name(f->kind),
            f->detail, f->cta.x, f->cta.y, f->cta.z, f->thread.x, f->thread.y, f->thread.z);
    if (f->source_line) fprintf(out, ", source line %u", f->source_line);
    if (f->count > 1) fprintf(out, ", %llu times", (unsigned long long)f->count);
    fputc('\n', out);
  }
}
