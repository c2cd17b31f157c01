// The golden vectors of tests/vectors/, one frame each.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "check.hpp"
#include "protocol/wire.hpp"

namespace kvstore::testing {

struct Vector {
  std::string name, kind;
  uint32_t op = 0, flags = 0, request_id = 0, body_bytes = 0;
  uint64_t payload_bytes = 0;
  uint32_t status = 0;
  uint64_t map_epoch = 0;
  uint32_t text_bytes = 0;
  std::vector<uint8_t> frame;

  bool is_reply() const { return kind == "reply"; }
  wire::Reader body() const { return {frame.data() + wire::kHeaderBytes, frame.size() - wire::kHeaderBytes}; }
};

inline std::vector<Vector> vectors() {
  std::ifstream in(std::string(KVSTORE_VECTORS_DIR) + "/protocol_v2.txt");
  std::vector<Vector> all;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    Vector v;
    std::string hex;
    words >> v.name >> v.kind >> v.op >> v.flags >> v.request_id >> v.body_bytes >> v.payload_bytes >>
        v.status >> v.map_epoch >> v.text_bytes >> hex;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
      v.frame.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    all.push_back(v);
  }
  return all;
}

inline Vector vector_of(const std::string& name, const std::string& kind) {
  for (const Vector& v : vectors())
    if (v.name == name && v.kind == kind) return v;
  fail(__FILE__, __LINE__, "no vector " + name);
  return {};
}

}  // namespace kvstore::testing
