/* The same operations through MPI: `openmpi ROUNDS FRESH "OPERATION|BYTES" …`, under mpirun. Rank 0
 * prints a line "ROUND<tab>OPERATION|BYTES<tab>MICROSECONDS" for each figure: the median of one
 * round's calls on the rank for which it was largest, as bench/collectives/ranks.py has it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostCalls = 400, kFewestCalls = 5 };
static const double kBudget = 0.25; /* seconds for one figure in one round */

struct operation {
  char name[32];
  long bytes;
  float *whole, *other, *share;
  int count, part; /* elements of the whole and of a rank's share */
};

static int rank, ranks;
static int fresh; /* each rank writes its input anew before each call, untimed */

static void call(const struct operation* op) {
  const MPI_Comm all = MPI_COMM_WORLD;
  if (!strcmp(op->name, "barrier")) {
    MPI_Barrier(all);
  } else if (!strcmp(op->name, "all_reduce")) {
    MPI_Allreduce(MPI_IN_PLACE, op->whole, op->count, MPI_FLOAT, MPI_SUM, all);
  } else if (!strcmp(op->name, "broadcast")) {
    MPI_Bcast(op->whole, op->count, MPI_FLOAT, 0, all);
  } else if (!strcmp(op->name, "reduce")) {
    MPI_Reduce(rank == 0 ? MPI_IN_PLACE : op->whole, op->whole, op->count, MPI_FLOAT, MPI_SUM, 0,
               all);
  } else if (!strcmp(op->name, "all_gather")) {
    MPI_Allgather(op->share, op->part, MPI_FLOAT, op->whole, op->part, MPI_FLOAT, all);
  } else if (!strcmp(op->name, "reduce_scatter")) {
    MPI_Reduce_scatter_block(op->whole, op->share, op->part, MPI_FLOAT, MPI_SUM, all);
  } else if (!strcmp(op->name, "all_to_all")) {
    MPI_Alltoall(op->whole, op->part, MPI_FLOAT, op->other, op->part, MPI_FLOAT, all);
  } else if (!strcmp(op->name, "ping-pong")) {
    if (rank == 0) {
      MPI_Send(op->whole, op->count, MPI_FLOAT, 1, 0, all);
      MPI_Recv(op->whole, op->count, MPI_FLOAT, 1, 0, all, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
      MPI_Recv(op->whole, op->count, MPI_FLOAT, 0, 0, all, MPI_STATUS_IGNORE);
      MPI_Send(op->whole, op->count, MPI_FLOAT, 0, 0, all);
    }
  } else {
    fprintf(stderr, "no such operation: %s\n", op->name);
    MPI_Abort(all, 2);
  }
}

static void write_input(const struct operation* op) {
  const int gathers = !strcmp(op->name, "all_gather");
  float* const input = gathers ? op->share : op->whole;
  for (int i = 0; i < (gathers ? op->part : op->count); ++i) input[i] = 1;
  MPI_Barrier(MPI_COMM_WORLD);
}

static int in_order(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return a < b ? -1 : a > b;
}

/* Microseconds of one call, the median of `calls`, on the slowest rank. */
static double measure(const struct operation* op, int calls) {
  double times[kMostCalls];
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < calls; ++i) {
    if (fresh) write_input(op);
    const double start = MPI_Wtime();
    call(op);
    times[i] = MPI_Wtime() - start;
  }
  qsort(times, (size_t)calls, sizeof times[0], in_order);
  double median = calls % 2 ? times[calls / 2] : (times[calls / 2 - 1] + times[calls / 2]) / 2;
  MPI_Allreduce(MPI_IN_PLACE, &median, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return median * 1e6;
}

static struct operation parse(const char* text) {
  struct operation op = {"", 0, NULL, NULL, NULL, 0, 0};
  if (sscanf(text, "%31[^|]|%ld", op.name, &op.bytes) != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  op.part = (int)(op.bytes / (long)sizeof(float)) / ranks;
  if (op.part < 1) op.part = 1;
  op.count = op.part * ranks;
  op.whole = calloc((size_t)op.count, sizeof(float));
  op.other = calloc((size_t)op.count, sizeof(float));
  op.share = calloc((size_t)op.part, sizeof(float));
  /* Touched, or the first calls would measure page faults and reads of the one zero page. */
  memset(op.whole, 0, (size_t)op.count * sizeof(float));
  memset(op.other, 0, (size_t)op.count * sizeof(float));
  memset(op.share, 0, (size_t)op.part * sizeof(float));
  return op;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int rounds = argc > 1 ? atoi(argv[1]) : 1;
  fresh = argc > 2 && atoi(argv[2]);
  for (int which = 3; which < argc; ++which) {
    struct operation op = parse(argv[which]);
    call(&op);
    const double once = measure(&op, 1) / 1e6;
    int calls = (int)(kBudget / (once > 1e-6 ? once : 1e-6));
    if (calls > kMostCalls) calls = kMostCalls;
    if (calls < kFewestCalls) calls = kFewestCalls;
    for (int round = 0; round < rounds; ++round) {
      const double median = measure(&op, calls);
      if (rank == 0) printf("%d\t%s\t%.3f\n", round, argv[which], median);
    }
    free(op.whole);
    free(op.other);
    free(op.share);
  }
  MPI_Finalize();
  return 0;
}
