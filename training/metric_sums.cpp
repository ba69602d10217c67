#include "training/metric_sums.h"

#include <cmath>
#include <nlohmann/json.hpp>

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

void MetricSums::share(Collectives& collectives, int root, at::Device device, const std::string& label) {
  // Names travel too: only the root knows them. CBOR keeps the bits of doubles, also of those that are no number.
  std::vector<uint8_t> bytes;
  if (collectives.rank() == root) bytes = nlohmann::json::to_cbor(nlohmann::json{sums_, maxima_});
  auto size = at::full({1}, static_cast<int64_t>(bytes.size()), at::TensorOptions(at::kLong).device(device));
  collectives.broadcast(size, root, label + ", size");
  bytes.resize(static_cast<size_t>(size.item<int64_t>()));
  auto data = at::tensor(bytes, at::kByte).to(device);
  collectives.broadcast(data, root, label);
  data = data.cpu();
  const auto* begin = data.const_data_ptr<uint8_t>();
  const auto numbers = nlohmann::json::from_cbor(begin, begin + data.numel());
  sums_ = numbers.at(0).get<std::map<std::string, double>>();
  maxima_ = numbers.at(1).get<std::map<std::string, double>>();
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
