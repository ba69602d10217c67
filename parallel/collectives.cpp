#include "parallel/collectives.h"

namespace troupe {

void CollectiveLog::add(CollectiveRecord record) {
  std::lock_guard lock(mutex_);
  auto& [calls, bytes] = totals_[record.operation];
  ++calls;
  bytes += record.bytes;
  records_.push_back(std::move(record));
  if (records_.size() > kMaxRecords) records_.pop_front();
}

std::vector<CollectiveRecord> CollectiveLog::records() const {
  std::lock_guard lock(mutex_);
  return {records_.begin(), records_.end()};
}

std::pair<int64_t, int64_t> CollectiveLog::totals(const std::string& operation) const {
  std::lock_guard lock(mutex_);
  const auto found = totals_.find(operation);
  return found == totals_.end() ? std::pair<int64_t, int64_t>{0, 0} : found->second;
}

void CollectiveLog::clear() {
  std::lock_guard lock(mutex_);
  records_.clear();
  totals_.clear();
}

}  // namespace troupe
