// Runs the entries of a bisect-litert export on the device and writes what their outputs held.
//
//   run_entries ROUND RESULTS [ENTRY...]
//
// ROUND is the folder with manifest.json, RESULTS the folder to write. Every entry runs in a process of its own, so that
// one that dies costs only itself, and its stderr goes to RESULTS/ENTRY/log.txt.

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "litert/cc/litert_common.h"
#include "litert/cc/litert_compiled_model.h"
#include "litert/cc/litert_environment.h"
#include "litert/cc/litert_options.h"
#include "litert/cc/litert_tensor_buffer.h"
#include "litert/cc/options/litert_gpu_options.h"
#include "nlohmann/json.hpp"

namespace {

using Json = nlohmann::json;
using Buffers = absl::flat_hash_map<absl::string_view, litert::TensorBuffer>;

// Ends the entry's process with a reason that the parent writes into status.json.
[[noreturn]] void Fail(const std::string& folder, const std::string& reason) {
  std::ofstream(folder + "/status.json") << Json{{"status", "failed"}, {"error", reason}};
  std::fflush(nullptr);
  _exit(1);
}

template <typename T>
T OrFail(litert::Expected<T> result, const std::string& folder, const std::string& what) {
  if (!result) Fail(folder, what + ": " + result.Error().Message());
  return std::move(*result);
}

void OrFail(const litert::Expected<void>& result, const std::string& folder, const std::string& what) {
  if (!result) Fail(folder, what + ": " + result.Error().Message());
}

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The bytes that an output buffer is filled with before the run: a value no kernel writes.
std::vector<char> Sentinels(const Json& sentinels, const Json& port) {
  const std::string dtype = port["dtype"];
  std::vector<char> filled(port["bytes"].get<size_t>());
  const bool is_float = sentinels.contains(dtype);
  const uint64_t bits = std::stoull(sentinels[is_float ? dtype : "other"].get<std::string>(), nullptr, 16);
  const size_t width = !is_float ? 1 : dtype == "float64" ? 8 : dtype == "float32" ? 4 : 2;
  for (size_t at = 0; at + width <= filled.size(); at += width) std::memcpy(&filled[at], &bits, width);  // little endian
  return filled;
}

litert::Expected<litert::CompiledModel> Compile(litert::Environment& environment, const std::string& model,
                                                const Json& accelerators, bool fp32, const std::string& folder) {
  auto options = OrFail(litert::Options::Create(), folder, "options");
  litert::HwAcceleratorSet wanted(litert::HwAccelerators::kNone);
  for (const auto& name : accelerators) {
    wanted |= name == "gpu" ? litert::HwAccelerators::kGpu : litert::HwAccelerators::kCpu;
  }
  OrFail(options.SetHardwareAccelerators(wanted), folder, "accelerators");
  if (fp32) {
    auto gpu = options.GetGpuOptions();
    if (!gpu) Fail(folder, "GPU options: " + gpu.Error().Message());
    OrFail(gpu->SetPrecision(litert::GpuOptions::Precision::kFp32), folder, "precision");
  }
  return litert::CompiledModel::Create(environment, model, options);
}

void RunEntry(const Json& manifest, const Json& entry, const std::string& round, const std::string& results) {
  const std::string folder = results + "/" + entry["name"].get<std::string>();
  for (const auto& [name, value] : entry["environment"].items()) {
    setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  }
  auto environment = OrFail(litert::Environment::Create({}), folder, "environment");
  const std::string model = round + "/" + entry["model"].get<std::string>();
  const bool fp32 = entry["precision"] == "fp32";
  auto compiled = Compile(environment, model, entry["accelerators"], fp32, folder);
  if (!compiled && !entry["fallback"].empty()) {
    std::cerr << compiled.Error().Message() << std::endl;
    compiled = Compile(environment, model, entry["fallback"], fp32, folder);
  }
  if (!compiled) Fail(folder, "compile: " + compiled.Error().Message());

  const std::string signature = entry["signature"];
  // The maps hold views of the names, so these must outlive them.
  std::vector<std::string> names;
  names.reserve(entry["inputs"].size() + entry["outputs"].size());
  Buffers inputs, outputs;
  for (const auto& port : entry["inputs"]) {
    names.push_back(port["name"]);
    auto buffer = OrFail(compiled->CreateInputBuffer(signature, names.back()), folder, names.back());
    const std::vector<char> content = ReadFile(round + "/" + port["raw"].get<std::string>());
    if (content.size() != port["bytes"].get<size_t>()) Fail(folder, "input " + names.back() + " has another size");
    OrFail(buffer.Write<char>(absl::MakeConstSpan(content)), folder, names.back());
    inputs.emplace(names.back(), std::move(buffer));
  }
  for (const auto& port : entry["outputs"]) {
    names.push_back(port["name"]);
    auto buffer = OrFail(compiled->CreateOutputBuffer(signature, names.back()), folder, names.back());
    const std::vector<char> content = Sentinels(manifest["sentinels"], port);
    OrFail(buffer.Write<char>(absl::MakeConstSpan(content)), folder, names.back());
    outputs.emplace(names.back(), std::move(buffer));
  }
  OrFail(compiled->Run(signature, inputs, outputs), folder, "run");
  for (const auto& port : entry["outputs"]) {
    const std::string name = port["name"];
    std::vector<char> content(port["bytes"].get<size_t>());
    OrFail(outputs.at(name).Read<char>(absl::MakeSpan(content)), folder, name);
    std::ofstream(results + "/" + port["file"].get<std::string>(), std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::cerr << "usage: run_entries ROUND RESULTS [ENTRY...]\n";
    return 2;
  }
  const std::string round = arguments[1], results = arguments[2];
  const std::vector<std::string> only(arguments + 3, arguments + count);
  std::ifstream file(round + "/manifest.json");
  if (!file) {
    std::cerr << "run_entries: " << round << " has no manifest.json\n";
    return 2;
  }
  const Json manifest = Json::parse(file);
  mkdir(results.c_str(), 0775);
  for (const auto& entry : manifest["entries"]) {
    const std::string name = entry["name"], folder = results + "/" + name;
    bool wanted = only.empty();
    for (const std::string& asked : only) wanted = wanted || asked == name;
    if (!wanted) continue;
    mkdir(folder.c_str(), 0775);
    for (const auto& output : entry["outputs"]) {  // what another export left here is not this one's
      std::remove((results + "/" + output["file"].get<std::string>()).c_str());
    }
    std::remove((folder + "/status.json").c_str());
    std::ofstream(folder + "/started") << entry["id"].get<std::string>() << std::flush;
    std::cout << name << std::flush;
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen((folder + "/log.txt").c_str(), "w", stderr) == nullptr) _exit(1);
      RunEntry(manifest, entry, round, results);
      std::fflush(nullptr);
      _exit(0);  // what a driver does at exit is not part of the test
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      const std::string reason = "signal " + std::to_string(WTERMSIG(status));
      std::ofstream(folder + "/status.json") << Json{{"status", "crashed"}, {"error", reason}};
    }
    std::cout << (WIFEXITED(status) && WEXITSTATUS(status) == 0 ? " ok" : " failed") << std::endl;
  }
  return 0;
}
