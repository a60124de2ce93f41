// Shared by the parts of the recorder: what it was asked, and how it notes what the launcher does.
//
// The recorder is linked with a candidate's host code and runs in a box without a GPU. Nothing in
// this process can be trusted once candidate code ran: whoever reads the record checks every byte.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kb {

// What the compiler found out about one kernel (from the PTX and from ptxas).
struct Kernel {
    std::string name;
    std::vector<uint32_t> parameters;  // size of each parameter in bytes
    int registers = 0;
    int static_shared = 0;
    int local = 0;
    int max_threads = 1024;
    // State the launcher changed with cudaFuncSetAttribute.
    int max_dynamic_shared = 49152;
    int carveout = -1;
    bool non_portable_cluster = false;
};

struct Symbol {
    std::string name;
    uint64_t nbytes = 0;
    const void* host = nullptr;
    uint64_t base = 0;
};

struct Argument {
    bool pointer = false;
    uint64_t nbytes = 0;  // of the buffer behind a pointer
    uint64_t value = 0;   // bits of a scalar, or the fake address
};

struct Case {
    std::vector<Argument> arguments;
};

struct Attribute {
    int id;
    int value;
};

// The request: where fake addresses lie, what device to pretend to be, kernels, cases.
struct Request {
    uint64_t first_base = 0;
    int64_t stride = 0;
    uint64_t workspace_limit = 0;
    uint64_t record_limit = 0;
    uint64_t fill = 0;  // byte that fresh host memory and the stack are filled with
    std::string device;
    uint64_t global_memory = 0;
    std::vector<Attribute> attributes;
    std::vector<Kernel> kernels;
    std::vector<Case> cases;

    int attribute(int id, bool* known) const;
};

extern Request request;

// Codes of the frames in a record; kb_env/record.py reads them.
enum Code : uint8_t {
    LAUNCH = 1,
    FILL = 2,
    COPY = 3,
    UPLOAD = 4,
    ATTRIBUTE = 5,
    ALLOC = 6,
    SYMBOL = 7,
    REFUSED = 8,
    END = 9,
    FAILED_LAUNCH = 10,
    ERROR_READ = 11,
};

// Appends to the record of the case that runs.
void put(const void* data, uint64_t size);
void put_u8(uint8_t value);
void put_u32(uint32_t value);
void put_u64(uint64_t value);
void put_text(const std::string& text);

// Ends this case: the launcher did something that a plan cannot express.
[[noreturn]] void refuse(const std::string& what);

// Fake device memory: the next free address, noted in the record by the caller.
uint64_t next_address();
bool is_fake(uint64_t address);

// Called once per case before the entry: notes the module's symbols and gives them addresses.
void begin_symbols();

}  // namespace kb

// Made for each signature: calls the candidate's entry with the case's arguments.
extern "C" bool kb_entry_defined();
extern "C" void kb_call_entry();
extern "C" uint64_t kb_argument(int index);
