// The only way to doctest: torch defines CHECK as a fatal check of its own, so doctest's must come after it.
#pragma once

#include "models/torch.h"

#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE
#include <doctest/doctest.h>
