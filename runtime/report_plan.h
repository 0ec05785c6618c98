/* Sections of the HTML report on the training program: memory and time by step. */
#ifndef KVA_RUNTIME_REPORT_PLAN_H
#define KVA_RUNTIME_REPORT_PLAN_H

#include "runtime/report.h"

void kva_report_add_memory(kva_text *text, const kva_report *r);
void kva_report_add_times(kva_text *text, const kva_report *r);

#endif
