#include "segment/eviction/interval_ranking.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvstore {
namespace {

constexpr double kUnknownInterval = 20;  // of what was seen once, in times that it takes to use all objects
constexpr double kNewest = 0.5;          // weight of the newest gap in the average
constexpr uint8_t kSeenOften = 64;
constexpr double kStepsAnOctave = 2;
constexpr double kDemoted = 2;  // so many times later what was demoted is expected
constexpr double kDemotedFirst = 1e18;

double interval_of(uint8_t memory) {
  static const auto intervals = [] {
    std::array<double, 64> table{};
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = std::exp2((static_cast<double>(i) - 0.5) / kStepsAnOctave);
    return table;
  }();
  return intervals[memory % kSeenOften];
}

}  // namespace

uint8_t IntervalRanking::seen_again(uint8_t memory, double gap, double, bool) const {
  const double interval = memory == 0 ? gap : kNewest * gap + (1 - kNewest) * interval_of(memory);
  const double step = 1 + std::log2(std::max(1.0, interval)) * kStepsAnOctave;
  return static_cast<uint8_t>(std::min(63.0, step)) + (memory == 0 ? 0 : kSeenOften);
}

uint8_t IntervalRanking::better(uint8_t a, uint8_t b) const {
  if (a == 0 || b == 0) return std::max(a, b);
  return static_cast<uint8_t>(std::min(a % kSeenOften, b % kSeenOften) | (std::max(a, b) & kSeenOften));
}

double IntervalRanking::worth(const Standing& s) const {
  // Ages tell apart what is alike otherwise.
  if (parameters_.patience == 0) return -s.age;
  const double unknown = kUnknownInterval * s.objects;
  const double overdue = s.age * kUnknownInterval / parameters_.patience;
  double worth = -std::max(s.memory == 0 ? unknown : interval_of(s.memory), overdue) - 0.001 * s.age;
  if (parameters_.trust < 1 || s.keep == Keep::kNormal || s.keep == Keep::kRetained) return worth;
  if (s.keep == Keep::kWanted) {
    worth /= parameters_.trust;
  } else {
    worth *= kDemoted;
    // Heads of prefixes are shared, and may be asked to go by one of many that use them.
    if (s.memory < kSeenOften) worth -= kDemotedFirst;
  }
  return worth;
}

}  // namespace kvstore
