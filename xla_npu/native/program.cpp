#include "program.h"

#include <algorithm>

namespace npu {
namespace {
std::string unhex(const std::string& hex) {
    std::string made;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
        made += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return made;
}

std::vector<size_t> indices(const Json& json, size_t limit, const char* what) {
    std::vector<size_t> made;
    for (const int64_t index : json.integers()) {
        if (index < 0 || static_cast<size_t>(index) >= limit) {
            fail(PJRT_INTERNAL, "The compiler names %s %ld; there are %zu", what, static_cast<long>(index), limit);
        }
        made.push_back(static_cast<size_t>(index));
    }
    return made;
}

size_t index(const Json& json, size_t limit, const char* what) {
    const int64_t value = json.integer();
    if (value < 0 || static_cast<size_t>(value) >= limit) {
        fail(PJRT_INTERNAL, "The compiler names %s %ld; there are %zu", what, static_cast<long>(value), limit);
    }
    return static_cast<size_t>(value);
}

Shape shape_of(const Json& json) { return {type_named(json["dtype"].text()), json["dims"].integers()}; }

Argument argument(const Json& json, size_t position, size_t values) {
    return {shape_of(json), kind_named(json["memory_kind"].text("device")), unhex(json["sharding"].text("")),
            json["value"].is_null() ? position : index(json["value"], values, "value")};
}

std::vector<Step> parse_steps(const Json& json, const Program& program);

Step parse_step(const Json& json, const Program& program) {
    const size_t values = program.value_bytes.size();
    const std::string& kind = json["kind"].text();
    Step made;
    made.inputs = indices(json["inputs"], values, "value");
    made.outputs = indices(json["outputs"], values, "value");
    if (kind == "model") {
        made.model = index(json["model"], program.models.size(), "model");
    } else if (kind == "collective") {
        made.kind = Step::Kind::collective;
        made.operation = json["op"].text();
        made.reduction = json["reduction"].text("sum");
        const Json& groups = json["pairs"].is_null() ? json["groups"] : json["pairs"];
        for (const Json& group : groups.items()) made.groups.push_back(group.integers());
        made.type = type_named(json["dtype"].text());
        made.count = static_cast<size_t>(json["count"].integer());
    } else if (kind == "callback") {
        made.kind = Step::Kind::callback;
        made.target = json["target"].text();
        made.call = json["call"].text();
        made.once = json["once"].truth(false);
    } else if (kind == "device_id") {
        made.kind = Step::Kind::device_id;
    } else if (kind == "while") {
        made.kind = Step::Kind::loop;
        made.parts = {parse_steps(json["condition"], program), parse_steps(json["body"], program)};
        made.decides = index(json["predicate"], values, "value");
        for (const Json& pair : json["carried"].items()) {
            const auto both = indices(pair, values, "value");
            made.carried.emplace_back(both.at(0), both.at(1));
        }
    } else if (kind == "case") {
        made.kind = Step::Kind::choice;
        made.decides = index(json["index"], values, "value");
        for (const Json& branch : json["branches"].items()) made.parts.push_back(parse_steps(branch, program));
        if (made.parts.empty()) fail(PJRT_INTERNAL, "The compiler made a choice without branches");
    } else {
        fail(PJRT_INTERNAL, "The compiler made a step of an unknown kind, '%s': its version and the plugin's differ",
             kind.c_str());
    }
    return made;
}

std::vector<Step> parse_steps(const Json& json, const Program& program) {
    std::vector<Step> made;
    for (const Json& each : json.items()) made.push_back(parse_step(each, program));
    return made;
}

bool has(const std::vector<Step>& steps, bool (*wanted)(Step::Kind)) {
    return std::any_of(steps.begin(), steps.end(), [wanted](const Step& step) {
        return wanted(step.kind) || std::any_of(step.parts.begin(), step.parts.end(),
                                                [wanted](const auto& part) { return has(part, wanted); });
    });
}
}  // namespace

std::shared_ptr<const Program> Program::make(std::string header, std::string payload, Source source) {
    auto made = std::make_shared<Program>();
    Program& program = *made;
    program.header = std::move(header);
    program.payload = std::move(payload);
    program.source = std::move(source);
    const Json json = Json::parse(program.header);
    program.name = json["name"].text("main");
    program.fingerprint = json["fingerprint"].text("");
    program.replicas = static_cast<int>(json["num_replicas"].integer(1));
    program.partitions = static_cast<int>(json["num_partitions"].integer(1));
    for (const Json& row : json["device_assignment"].items()) {
        for (const int64_t device : row.integers()) program.assignment.push_back(static_cast<int>(device));
    }
    size_t at = 0;
    for (const Json& model : json["models"].items()) {
        const auto size = static_cast<size_t>(model["size"].integer());
        if (size > program.payload.size() - at) fail(PJRT_INTERNAL, "A model of the program is cut off");
        program.models.push_back(std::string_view(program.payload).substr(at, size));
        at += size;
    }
    for (const Json& value : json["values"].items())
        program.value_bytes.push_back(static_cast<size_t>(value["bytes"].integer()));
    const size_t values = program.value_bytes.size();
    for (const Json& input : json["inputs"].items())
        program.inputs.push_back(argument(input, program.inputs.size(), values));
    for (const Json& output : json["outputs"].items()) {
        program.outputs.push_back(argument(output, program.inputs.size() + program.outputs.size(), values));
    }
    program.donated_to.assign(program.inputs.size(), -1);
    for (const Json& pair : json["donation"].items()) {
        const size_t output = index(pair.items().at(0), program.outputs.size(), "output");
        const size_t input = index(pair.items().at(1), program.inputs.size(), "input");
        program.donated_to[input] = static_cast<int64_t>(output);
    }
    program.consumed.resize(program.inputs.size());
    for (const size_t input : indices(json["consumed"], program.inputs.size(), "input")) program.consumed[input] = true;
    program.steps = parse_steps(json["steps"], program);
    using Kind = Step::Kind;
    program.meets = has(program.steps, [](Kind kind) { return kind == Kind::collective; });
    program.names_devices = has(program.steps, [](Kind kind) { return kind == Kind::device_id; });
    program.interactive = has(
        program.steps, [](Kind kind) { return kind == Kind::callback || kind == Kind::loop || kind == Kind::choice; });
    for (const Json& pair : json["inspections"].items()) {
        program.inspections.emplace_back(unhex(pair.items().at(0).text()), unhex(pair.items().at(1).text()));
    }
    for (const auto& [name, value] : json["cost"].members()) {
        if (value.is_number()) program.cost.add(name, value.number());
    }
    return made;
}

}  // namespace npu
