// Replays what a reference implementation computed from a model folder (expected.safetensors beside it): logits, loss,
// gradient norm and single gradients of the training forward and backward. Used by the fixture tests and `troupe
// verify`.
#pragma once

#include <filesystem>
#include <string>

#include "models/torch.h"

namespace troupe {

struct VerifyResult {
  std::string dir;
  double logits_max_abs = 0, scores_max_abs = 0, loss_abs = 0, grad_norm_rel = 0, grad_max_abs = 0;
  bool ok = false;
  std::string error;  // what is out of its tolerance, or why nothing could be compared; "" where ok

  /// The largest difference relative to its own tolerance; at most 1 where ok.
  double worst_share = 0;
};

/// Loads the folder in fp32 and compares with the tolerances of its expected.json. What expected.safetensors does not
/// hold is not checked; the greedy continuation is the caller's matter (it goes through the generation engine). Never
/// throws: a folder that cannot be loaded gives ok = false and the reason.
VerifyResult verify_model_folder(const std::filesystem::path& folder);

}  // namespace troupe
