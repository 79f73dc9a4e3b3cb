/* The baseline of single decodes: PyMatching without Python, on the shots that decode_bench decodes. A JSON line for each set
 * of the distances that is in FOLDER. A decode is from the list of the shot's events to its flips. The cost of reading the
 * clock is taken off and own_p9999_ns is of the least time of each shot, as in decode_bench.
 * PyMatching's and Stim's sources are compiled with it, those parts that decoding needs.
 * Build: g++ -std=c++20 -O3 -march=native -ffunction-sections -Wl,--gc-sections -I PYMATCHING/src -I STIM/src -o pymatching_decode pymatching_decode.cc
 * Run: pymatching_decode ROUNDS FOLDER DISTANCE... */
#include "pymatching/sparse_blossom/driver/mwpm_decoding.cc"
#include "pymatching/sparse_blossom/driver/user_graph.cc"
#include "pymatching/sparse_blossom/search/search_detector_node.cc"
#include "pymatching/sparse_blossom/search/search_flooder.cc"
#include "pymatching/sparse_blossom/search/search_graph.cc"
#include "pymatching/sparse_blossom/flooder/detector_node.cc"
#include "pymatching/sparse_blossom/flooder/graph.cc"
#include "pymatching/sparse_blossom/flooder/graph_fill_region.cc"
#include "pymatching/sparse_blossom/flooder/graph_flooder.cc"
#include "pymatching/sparse_blossom/flooder/match.cc"
#include "pymatching/sparse_blossom/flooder_matcher_interop/compressed_edge.cc"
#include "pymatching/sparse_blossom/flooder_matcher_interop/mwpm_event.cc"
#include "pymatching/sparse_blossom/flooder_matcher_interop/region_edge.cc"
#include "pymatching/sparse_blossom/matcher/alternating_tree.cc"
#include "pymatching/sparse_blossom/matcher/mwpm.cc"
#include "pymatching/sparse_blossom/tracker/flood_check_event.cc"
#include "stim/circuit/circuit_instruction.cc"
#include "stim/dem/dem_instruction.cc"
#include "stim/dem/detector_error_model.cc"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

static uint64_t ns_since(Clock::time_point started) {
    return (uint64_t)std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started).count();
}

static std::vector<uint8_t> read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file)
        throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

/* Decodes each shot of a set so many times. */
static void measure(int distance, double p, const std::string &model, const std::string &shots_of, int rounds) {
    std::vector<uint8_t> text = read(model);
    stim::DetectorErrorModel errors(std::string_view((const char *)text.data(), text.size()));
    pm::Mwpm mwpm = pm::detector_error_model_to_mwpm(errors, pm::NUM_DISTINCT_WEIGHTS);
    std::vector<uint8_t> packed = read(shots_of + ".dets.b8"), flips = read(shots_of + ".obs.b8");
    std::vector<uint8_t> recorded = read(shots_of + ".pymatching.b8");
    size_t width = (errors.count_detectors() + 7) / 8, shots = flips.size(), agree = 0, wrong = 0;
    std::vector<std::vector<uint64_t>> events(shots);
    for (size_t shot = 0; shot < shots; shot++)
        for (size_t bit = 0; bit < 8 * width; bit++)
            if (packed[shot * width + bit / 8] >> bit % 8 & 1)
                events[shot].push_back(bit);

    pm::total_weight_int weight = 0;
    for (size_t shot = 0; shot < shots; shot++) {
        uint8_t predicted = 0;
        pm::decode_detection_events(mwpm, events[shot], &predicted, weight, false);
        agree += predicted == recorded[shot];
        wrong += predicted != flips[shot];
    }
    uint64_t clock = UINT64_MAX;
    for (int i = 0; i < 1000; i++)
        clock = std::min(clock, ns_since(Clock::now()));
    std::vector<uint64_t> times, least(shots, UINT64_MAX);
    times.reserve(shots * (size_t)rounds);
    for (int round = 0; round < rounds; round++)
        for (size_t shot = 0; shot < shots; shot++) {
            uint8_t predicted = 0;
            auto started = Clock::now();
            pm::decode_detection_events(mwpm, events[shot], &predicted, weight, false);
            uint64_t took = ns_since(started);
            times.push_back(took > clock ? took - clock : 1);
            least[shot] = std::min(least[shot], times.back());
        }
    std::sort(times.begin(), times.end());
    std::sort(least.begin(), least.end());
    auto at = [](const std::vector<uint64_t> &of, double quantile) {
        return (unsigned long)of[(size_t)std::ceil(quantile * (double)of.size()) - 1];
    };
    printf("{\"decoder\": \"pymatching, C++\", \"d\": %d, \"p\": %g, \"shots\": %zu, \"p50_ns\": %lu, \"p99_ns\": %lu, "
           "\"p9999_ns\": %lu, \"own_p9999_ns\": %lu, \"agreement\": %g, \"logical_errors\": %zu}\n",
           distance, p, shots, at(times, 0.5), at(times, 0.99), at(times, 0.9999), at(least, 0.9999),
           (double)agree / (double)shots, wrong);
}

int main(int argc, char **argv) {
    const struct {
        double p;
        const char *shots, *model;
    } noises[] = {{0.001, "_p1e-3", ""}, {0.005, "_p5e-3", "_p5e-3"}, {0.01, "_p1e-2", "_p1e-2"}};
    if (argc < 4) {
        fprintf(stderr, "pymatching_decode ROUNDS FOLDER DISTANCE...\n");
        return 2;
    }
    try {
        for (int i = 3; i < argc; i++)
            for (const auto &noise : noises) {
                std::string code = std::string(argv[2]) + "/surface_d" + argv[i];
                if (std::ifstream(code + noise.shots + ".dets.b8"))
                    measure(std::stoi(argv[i]), noise.p, code + noise.model + ".dem", code + noise.shots, std::stoi(argv[1]));
            }
    } catch (const std::exception &e) {
        fprintf(stderr, "pymatching_decode: %s\n", e.what());
        return 1;
    }
    return 0;
}
