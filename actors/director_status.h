// How the director stands, as JSON for `troupe top` and as a text for people who ask why a run hangs. Plain logic.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/admission.h"
#include "actors/messages.h"
#include "actors/work_ledger.h"

namespace troupe {

struct DirectorView {
  std::string who;  // "director, step 7"
  const WorkLedger& work;
  const AdmissionLedger& slots;
  int64_t step = 0, num_steps = 0, version = -1, num_given_up = 0;
  struct Worker {
    int seat = 0;
    double heard_s_ago = 0;
    WorkerStatus status;
  };
  std::vector<Worker> workers;
};

/// Everything but the buffer; "text" is for people.
nlohmann::json describe(const DirectorView& view);
/// The whole, with the buffer's own status. Texts of others may hold any bytes: what is no UTF-8 is replaced.
std::string add_buffer(nlohmann::json status, const std::string& buffer_json);
/// The whole where the buffer did not answer, and why.
std::string add_failure(nlohmann::json status, const std::string& why);

}  // namespace troupe
