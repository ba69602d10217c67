// Entry of the test program.
#include "models/torch.h"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tests/doctest.h"
