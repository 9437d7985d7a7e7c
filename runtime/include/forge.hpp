// C++17 around forge.h: handles that end by themselves, shapes as vectors, failures as exceptions.
#ifndef FORGE_HPP
#define FORGE_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "forge.h"

namespace forge {

// what() is forge_message(): where, what was expected, what was found, what to do.
class error : public std::runtime_error {
public:
    explicit error(int code) : std::runtime_error(forge_message()), code(code) {}
    const int code;
};

inline void check(int code) {
    if (code != FORGE_OK) throw error(code);
}

class model {
public:
    explicit model(const std::string &path) { open(path, nullptr, nullptr, 0); }
    model(const std::string &path, const std::string &key_path, const std::string &password) {
        open(path, key_path.c_str(), password.data(), password.size());
    }
    const forge_model *get() const { return handle_.get(); }
    std::vector<forge_port> inputs() const { return ports(forge_inputs(get()), forge_input); }
    std::vector<forge_port> outputs() const { return ports(forge_outputs(get()), forge_output); }

private:
    void open(const std::string &path, const char *key_path, const void *password, size_t size) {
        forge_model *made = nullptr;
        check(forge_open(path.c_str(), key_path, password, size, &made));
        handle_.reset(made, forge_close);
    }
    std::vector<forge_port> ports(int32_t count, const forge_port *(*port)(const forge_model *, int32_t)) const {
        std::vector<forge_port> list;
        for (int32_t index = 0; index < count; index++) list.push_back(*port(get(), index));
        return list;
    }
    std::shared_ptr<forge_model> handle_;
};

// Memory of the caller, or of the session: this does not own it.
struct array {
    const void *data;
    size_t size; // in bytes
    std::vector<int64_t> shape;

    template <typename T> static array of(const std::vector<T> &values, std::vector<int64_t> shape) {
        return {values.data(), values.size() * sizeof(T), std::move(shape)};
    }
    template <typename T> std::vector<T> values() const {
        const T *first = static_cast<const T *>(data);
        return std::vector<T>(first, first + size / sizeof(T));
    }
};

class session {
public:
    explicit session(model of, int32_t threads = 1) : model_(std::move(of)) {
        forge_session *made = nullptr;
        check(forge_start(model_.get(), threads, &made));
        handle_.reset(made);
    }
    forge_session *get() const { return handle_.get(); }

    // The outputs lie in the session's memory, or in an input's, until the next call.
    std::vector<array> run(const std::vector<array> &inputs) {
        std::vector<forge_array> given(inputs.size()), made(static_cast<size_t>(forge_outputs(model_.get())));
        if (given.size() != static_cast<size_t>(forge_inputs(model_.get()))) throw std::invalid_argument("another number of inputs than the model has");
        for (size_t index = 0; index < given.size(); index++) {
            given[index] = {const_cast<void *>(inputs[index].data), inputs[index].size, {}};
            const forge_port *port = forge_input(model_.get(), static_cast<int32_t>(index));
            if (inputs[index].shape.size() != static_cast<size_t>(port->rank)) throw std::invalid_argument(std::string(port->name) + ": another number of axes");
            for (size_t axis = 0; axis < inputs[index].shape.size(); axis++) given[index].shape[axis] = inputs[index].shape[axis];
        }
        check(forge_run(get(), given.data(), made.data()));
        std::vector<array> outputs;
        for (size_t index = 0; index < made.size(); index++) {
            const int32_t rank = forge_output(model_.get(), static_cast<int32_t>(index))->rank;
            outputs.push_back({made[index].data, made[index].size, {made[index].shape, made[index].shape + rank}});
        }
        return outputs;
    }

private:
    struct stop {
        void operator()(forge_session *session) const { forge_stop(session); }
    };
    model model_; // first in, last out
    std::unique_ptr<forge_session, stop> handle_;
};

} // namespace forge
#endif
