// Entry of the test program.
#include "models/torch.h"

#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/doctest.h"
#ifdef TROUPE_WITH_CUDA
#include "parallel/cuda/register.h"
#endif

int main(int argc, char** argv) {
#ifdef TROUPE_WITH_CUDA
  troupe::register_cuda();
#endif
  return doctest::Context(argc, argv).run();
}
