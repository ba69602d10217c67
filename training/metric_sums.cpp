#include "training/metric_sums.h"

#include <cmath>

#include "base/error.h"

namespace troupe {
namespace {

double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b); }

double find(const std::map<std::string, double>& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? 0 : found->second;
}

}  // namespace

void MetricSums::raise(const std::string& name, double value) {
  const auto [entry, is_new] = maxima_.try_emplace(name, value);
  if (!is_new) entry->second = larger(entry->second, value);
}

void MetricSums::join(Collectives& collectives, at::Device device, const std::string& label) {
  std::vector<double> values;
  for (const auto& [name, value] : sums_) values.push_back(value);
  for (const auto& [name, value] : maxima_) values.push_back(value);
  const auto mine = at::tensor(values, at::kDouble).to(device);
  auto all = at::empty({collectives.size() * mine.numel()}, mine.options());
  collectives.all_gather(all, mine, label);
  all = all.cpu();
  const auto* gathered = all.const_data_ptr<double>();
  const auto of_rank = [&](int rank, size_t index) {
    return gathered[static_cast<size_t>(rank) * values.size() + index];
  };
  size_t index = 0;
  for (auto& [name, value] : sums_) {
    value = 0;
    for (int rank = 0; rank < collectives.size(); ++rank) value += of_rank(rank, index);
    ++index;
  }
  for (auto& [name, value] : maxima_) {
    for (int rank = 0; rank < collectives.size(); ++rank) value = larger(value, of_rank(rank, index));
    ++index;
  }
}

double MetricSums::sum(const std::string& name) const { return find(sums_, name); }
double MetricSums::maximum(const std::string& name) const { return find(maxima_, name); }

double MetricSums::ratio(const std::string& numerator, const std::string& denominator) const {
  const double divisor = sum(denominator);
  return divisor == 0 ? 0 : sum(numerator) / divisor;
}

void MetricSums::merge(const MetricSums& other) {
  for (const auto& [name, value] : other.sums_) add(name, value);
  for (const auto& [name, value] : other.maxima_) raise(name, value);
}

}  // namespace troupe
