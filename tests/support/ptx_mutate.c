/* Deleting instructions from PTX text, and judging what remains. */
#include "tests/support/ptx_mutate.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool begins(const char *s, const char *with) {
  return !strncmp(s, with, strlen(with));
}

static bool synchronises(const char *mnemonic) {
  static const char *const list[] = {"bar.",
                                     "barrier.",
                                     "membar",
                                     "fence",
                                     "cp.async.wait_",
                                     "cp.async.commit_group",
                                     "cp.async.mbarrier.arrive",
                                     "cp.async.bulk.commit_group",
                                     "cp.async.bulk.wait_group",
                                     "mbarrier.arrive",
                                     "mbarrier.expect_tx",
                                     "mbarrier.try_wait",
                                     "mbarrier.test_wait",
                                     "wgmma.fence",
                                     "wgmma.commit_group",
                                     "wgmma.wait_group"};
  for (size_t k = 0; k < sizeof list / sizeof *list; k++)
    if (begins(mnemonic, list[k])) return true;
  return false;
}

static const char *skip_blank(const char *s) {
  for (;;) {
    if (isspace((unsigned char)*s)) {
      s++;
    } else if (begins(s, "//")) {
      s += strcspn(s, "\n");
    } else if (begins(s, "/*") && strstr(s, "*/")) {
      s = strstr(s, "*/") + 2;
    } else {
      return s;
    }
  }
}

/* The statement that begins at s: its end, behind the semicolon, the colon of a label or the brace of a scope. */
static const char *statement_end(const char *s) {
  if (*s == '{' || *s == '}') return s + 1;
  for (const char *p = s; *p; p++) {
    if (*p == ';') return p + 1;
    if (*p == ':' && p[1] != ':' && p[-1] != ':') return p + 1;
    if (*p == '{' && s[0] == '.' && !memchr(s, ';', (size_t)(p - s)) && strstr(s, ".entry") && strstr(s, ".entry") < p)
      return p + 1;
  }
  return s + strlen(s);
}

/* The mnemonic behind a guard. */
static void read_mnemonic(const char *s, char out[80]) {
  if (*s == '@') s = skip_blank(s + strcspn(s, " \t\n"));
  size_t n = strcspn(s, " \t\n;");
  if (n > 79) n = 79;
  memcpy(out, s, n);
  out[n] = 0;
}

uint32_t ptx_find_mutants(const char *text, ptx_mutant *out, uint32_t most) {
  uint32_t n = 0;
  for (const char *s = skip_blank(text); *s && n < most;) {
    const char *end = statement_end(s);
    ptx_mutant m = {.number = 1, .line = 1, .begin = (size_t)(s - text), .end = (size_t)(end - text)};
    read_mnemonic(s, m.mnemonic);
    s = skip_blank(end);
    if (!synchronises(m.mnemonic)) continue;
    for (const char *p = text; p < text + m.begin; p++) m.line += *p == '\n';
    for (uint32_t k = 0; k < n; k++) m.number += !strcmp(out[k].mnemonic, m.mnemonic);
    out[n++] = m;
  }
  return n;
}

char *ptx_mutate(const char *text, const ptx_mutant *m) {
  char *out = malloc(strlen(text) + 64);
  if (!out) return NULL;
  memcpy(out, text, m->begin);
  size_t n = m->begin;
  if (strstr(m->mnemonic, "_wait.") && begins(m->mnemonic, "mbarrier")) {
    const char *pred = skip_blank(strstr(text + m->begin, m->mnemonic) + strlen(m->mnemonic));
    n += (size_t)sprintf(out + n, "setp.eq.u32 %.*s, 0, 0;", (int)strcspn(pred, " ,|"), pred);
  }
  for (size_t k = m->begin; k < m->end; k++)
    if (text[k] == '\n') out[n++] = '\n';
  strcpy(out + n, text + m->end);
  return out;
}

static bool judge_run(const ptx_subject *subject, const kva_ptx_module *module, const kva_ptx_options *options,
                      ptx_verdict *verdict) {
  kva_diag *diag = kva_diag_create();
  const kva_ptx_kernel *kernel = kva_ptx_module_get_kernel(module, subject->kernel ? subject->kernel : subject->name);
  kva_ptx_report report = {0};
  bool right = false;
  kva_status status = kernel ? subject->run(subject->user, kernel, options, diag, &report, &right) : KVA_INVALID;
  if (status != KVA_OK)
    snprintf(verdict->how, sizeof verdict->how, "refused: %s",
             kva_diag_count(diag) ? kva_diag_message(diag, 0, NULL, NULL) : kva_status_name(status));
  else if (report.n_findings)
    snprintf(verdict->how, sizeof verdict->how, "%s at line %u", kva_ptx_finding_name(report.findings[0].kind),
             report.findings[0].line);
  else if (!right)
    snprintf(verdict->how, sizeof verdict->how, "wrong result");
  verdict->caught = status != KVA_OK || report.n_findings || !right;
  kva_ptx_report_free(&report);
  kva_diag_destroy(diag);
  return verdict->caught;
}

ptx_verdict ptx_judge(const ptx_subject *subject, const char *text) {
  enum { STEPS = 1 << 20 };
  static const kva_ptx_options modes[] = {{.max_steps = STEPS, .check_global = true},
                                          {.max_steps = STEPS, .lazy = true},
                                          {.max_steps = STEPS, .lazy = true, .schedule_seed = 7},
                                          {.max_steps = STEPS, .schedule_seed = 12},
                                          {.max_steps = STEPS, .lazy = true, .schedule_seed = 31}};
  ptx_verdict verdict = {.how = "no finding and the right result"};
  kva_diag *diag = kva_diag_create();
  kva_ptx_module *module = NULL;
  if (kva_ptx_module_create(text, strlen(text), subject->name, diag, &module) != KVA_OK) {
    snprintf(verdict.how, sizeof verdict.how, "does not parse: %s", kva_diag_message(diag, 0, NULL, NULL));
    verdict.caught = true;
  }
  for (size_t k = 0; module && k < sizeof modes / sizeof *modes; k++)
    if (judge_run(subject, module, &modes[k], &verdict)) break;
  kva_ptx_module_destroy(module);
  kva_diag_destroy(diag);
  return verdict;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static void fail(ptx_mutations *t, const char *subject, const char *what) {
  printf("FAILED: %s: %s\n", subject, what);
  t->failures++;
}

static void add_exception(ptx_mutations *t, const char *line) {
  ptx_exception e = {0};
  int reason = 0;
  if (line[0] == '#' || line[0] == '\n') return;
  if (sscanf(line, "%63s %79s %u %n", e.subject, e.mnemonic, &e.number, &reason) != 3 || strlen(line + reason) < 20)
    fail(t, line, "a line of the list takes a subject, a mnemonic, a number and an argument");
  else if (t->n_exceptions == PTX_MAX_EXCEPTIONS)
    fail(t, line, "the list is too long");
  else
    t->exceptions[t->n_exceptions++] = e;
}

void ptx_mutations_begin(ptx_mutations *t, const char *list_path) {
  char line[600];
  *t = (ptx_mutations){0};
  FILE *file = fopen(list_path, "r");
  if (!file) {
    fail(t, list_path, "cannot be read");
    return;
  }
  while (fgets(line, sizeof line, file)) add_exception(t, line);
  fclose(file);
}

static bool is_listed(ptx_mutations *t, const ptx_subject *subject, const ptx_mutant *m) {
  for (uint32_t k = 0; k < t->n_exceptions; k++) {
    ptx_exception *e = &t->exceptions[k];
    if (strcmp(e->subject, subject->name) || strcmp(e->mnemonic, m->mnemonic) || e->number != m->number) continue;
    e->met = true;
    return true;
  }
  return false;
}

static void check_mutant(ptx_mutations *t, const ptx_subject *subject, const char *text, const ptx_mutant *m) {
  char *mutated = ptx_mutate(text, m);
  ptx_verdict v = ptx_judge(subject, mutated);
  free(mutated);
  bool listed = is_listed(t, subject, m);
  printf("%s:%u: without %s %u: %s%s\n", subject->name, m->line, m->mnemonic, m->number, v.how,
         listed ? " [listed]" : "");
  t->mutants++;
  t->caught += v.caught;
  t->equivalent += !v.caught && listed;
  if (v.caught == listed) fail(t, subject->name, listed ? "listed, but caught" : "neither caught nor listed");
}

/* A text may hold other kernels than the subject's. */
static bool is_of_kernel(const ptx_subject *subject, const char *text, const ptx_mutant *m) {
  static const char entry[] = ".entry ";
  const char *name = NULL;
  for (const char *p = text; (p = strstr(p, entry)) && p < text + m->begin;) name = p += strlen(entry);
  size_t n = subject->kernel ? strlen(subject->kernel) : 0;
  return !n || (name && !strncmp(name, subject->kernel, n) && name[n] == '(');
}

void ptx_mutations_check(ptx_mutations *t, const ptx_subject *subject) {
  enum { MAX_MUTANTS = 512 };
  static ptx_mutant mutants[MAX_MUTANTS];
  uint32_t before = t->mutants, caught = t->caught;
  char *text = ptx_subject_text(subject);
  uint32_t n = text ? ptx_find_mutants(text, mutants, MAX_MUTANTS) : 0;
  ptx_verdict right = {.how = "has no text"};
  if (text) right = ptx_judge(subject, text);
  if (!text || right.caught)
    fail(t, subject->name, right.how);
  else if (!n || n == MAX_MUTANTS)
    fail(t, subject->name, "has no mutants, or too many");
  else
    for (uint32_t k = 0; k < n; k++)
      if (is_of_kernel(subject, text, &mutants[k])) check_mutant(t, subject, text, &mutants[k]);
  free(text);
  t->subjects++;
  printf("%s: %u mutants, %u caught\n", subject->name, t->mutants - before, t->caught - caught);
}

void ptx_mutations_end(ptx_mutations *t) {
  for (uint32_t k = 0; k < t->n_exceptions; k++) {
    const ptx_exception *e = &t->exceptions[k];
    if (e->met) continue;
    printf("%s %s %u: ", e->subject, e->mnemonic, e->number);
    fail(t, e->subject, "in the list, but there is no such mutant");
  }
  printf("%u kernels: %u mutants, %u caught, %u equivalent\n", t->subjects, t->mutants, t->caught, t->equivalent);
}
