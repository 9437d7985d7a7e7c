// Runs a model on an input of zeros and prints its first output: run MODEL
#include <cstdio>
#include <forge.hpp>

int main(int count, char **arguments) try {
    if (count != 2) return 2;
    forge::model model(arguments[1]);
    forge::session session(model, 2);
    const forge_port port = model.inputs().at(0);
    std::vector<int64_t> shape(port.shape, port.shape + port.rank);
    size_t elements = 1;
    for (int64_t &extent : shape) elements *= size_t(extent = extent < 0 ? 1 : extent); // an open extent: any size
    const std::vector<float> zeros(elements);
    for (float value : session.run({forge::array::of(zeros, shape)}).at(0).values<float>()) std::printf("%a\n", value);
} catch (const std::exception &error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
