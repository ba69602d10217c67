// Numbers that the micro-batches of one step add up to, joined over ranks in one call. Doubles only: nothing here can
// keep a graph alive.
#pragma once

#include <map>
#include <string>

#include "parallel/collectives.h"

namespace troupe {

class MetricSums {
 public:
  void add(const std::string& name, double value) { sums_[name] += value; }
  void raise(const std::string& name, double value);  // the largest; not a number wins
  /// Every rank must have touched the same names. Sums in rank order, so that all ranks hold the same bits. `device`:
  /// where the collectives work.
  void join(Collectives& collectives, at::Device device, const std::string& label);
  /// Takes the numbers of rank `root`, whatever this rank had.
  void share(Collectives& collectives, int root, at::Device device, const std::string& label);
  double sum(const std::string& name) const;
  double maximum(const std::string& name) const;
  /// sum(numerator) / sum(denominator), 0 where that is 0.
  double ratio(const std::string& numerator, const std::string& denominator) const;
  void merge(const MetricSums& other);

 private:
  std::map<std::string, double> sums_, maxima_;
};

}  // namespace troupe
