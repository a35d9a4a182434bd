#include "json.h"

#include <cstdio>
#include <cstdlib>

#include "failure.h"

namespace npu {

struct Json::Parser {
    std::string_view text;
    size_t at = 0;
    int depth = 0;

    [[noreturn]] void bad(const char* what) const {
        fail(PJRT_INTERNAL, "The compiler's answer is no JSON: %s at character %zu", what, at);
    }
    char peek() {
        while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) ++at;
        return at < text.size() ? text[at] : '\0';
    }
    bool accept(char wanted) {
        if (peek() != wanted) return false;
        ++at;
        return true;
    }
    void expect(char wanted) {
        if (!accept(wanted)) bad("something is missing");
    }
    void word(std::string_view wanted) {
        if (text.substr(at, wanted.size()) != wanted) bad("an unknown word");
        at += wanted.size();
    }

    unsigned hex4() {
        if (at + 4 > text.size()) bad("a short escape");
        const unsigned value =
            static_cast<unsigned>(std::strtoul(std::string(text.substr(at, 4)).c_str(), nullptr, 16));
        at += 4;
        return value;
    }

    static void append_utf8(std::string& to, unsigned point) {
        if (point < 0x80) {
            to += static_cast<char>(point);
            return;
        }
        const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
        constexpr unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
        to += static_cast<char>(lead[more] | (point >> (6 * more)));
        for (int i = more; i-- > 0;) to += static_cast<char>(0x80 | ((point >> (6 * i)) & 0x3F));
    }

    std::string string() {
        expect('"');
        std::string made;
        for (;;) {
            if (at >= text.size()) bad("an open string");
            const char c = text[at++];
            if (c == '"') return made;
            if (c != '\\') {
                made += c;
                continue;
            }
            if (at >= text.size()) bad("an open string");
            switch (const char escaped = text[at++]) {
                case 'n':
                    made += '\n';
                    break;
                case 't':
                    made += '\t';
                    break;
                case 'r':
                    made += '\r';
                    break;
                case 'b':
                    made += '\b';
                    break;
                case 'f':
                    made += '\f';
                    break;
                case 'u': {
                    unsigned point = hex4();
                    if (point >= 0xD800 && point < 0xDC00 && text.substr(at, 2) == "\\u") {
                        at += 2;
                        point = 0x10000 + ((point - 0xD800) << 10) + (hex4() - 0xDC00);
                    }
                    append_utf8(made, point);
                    break;
                }
                default:
                    made += escaped;
            }
        }
    }

    Json value() {
        if (++depth > 200) bad("too deep a nesting");
        Json made;
        switch (peek()) {
            case '{':
                ++at;
                made.kind_ = Kind::object;
                while (!accept('}')) {
                    if (!made.members_.empty()) expect(',');
                    peek();
                    std::string name = string();
                    expect(':');
                    made.members_.emplace(std::move(name), value());
                }
                break;
            case '[':
                ++at;
                made.kind_ = Kind::array;
                while (!accept(']')) {
                    if (!made.items_.empty()) expect(',');
                    made.items_.push_back(value());
                }
                break;
            case '"':
                made.kind_ = Kind::text;
                made.text_ = string();
                break;
            case 't':
                word("true");
                made.kind_ = Kind::boolean;
                made.boolean_ = true;
                break;
            case 'f':
                word("false");
                made.kind_ = Kind::boolean;
                break;
            case 'n':
                word("null");
                break;
            default: {
                const std::string rest(text.substr(at, 40));
                char* end = nullptr;
                made.kind_ = Kind::number;
                made.number_ = std::strtod(rest.c_str(), &end);
                if (end == rest.c_str()) bad("no value");
                at += static_cast<size_t>(end - rest.c_str());
            }
        }
        --depth;
        return made;
    }
};

Json Json::parse(std::string_view text) {
    Parser parser{text};
    Json made = parser.value();
    if (parser.peek() != '\0') parser.bad("something follows the value");
    return made;
}

namespace {
[[noreturn]] void wrong(const char* wanted) {
    fail(PJRT_INTERNAL, "The compiler's answer has another value where %s is wanted", wanted);
}
}  // namespace

const Json& Json::operator[](const std::string& name) const {
    static const Json none;
    const auto found = members_.find(name);
    return found == members_.end() ? none : found->second;
}
const std::vector<Json>& Json::items() const {
    if (kind_ != Kind::array && kind_ != Kind::null) wrong("a list");
    return items_;
}
const std::map<std::string, Json>& Json::members() const {
    if (kind_ != Kind::object && kind_ != Kind::null) wrong("an object");
    return members_;
}
const std::string& Json::text() const {
    if (kind_ != Kind::text) wrong("a text");
    return text_;
}
double Json::number() const {
    if (kind_ != Kind::number) wrong("a number");
    return number_;
}
bool Json::truth(bool otherwise) const {
    if (kind_ == Kind::null) return otherwise;
    if (kind_ != Kind::boolean) wrong("true or false");
    return boolean_;
}
std::vector<int64_t> Json::integers() const {
    std::vector<int64_t> made;
    for (const Json& item : items()) made.push_back(item.integer());
    return made;
}

std::string json_quote(std::string_view text) {
    std::string made = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') made += '\\';
        if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            made += escape;
        } else {
            made += c;
        }
    }
    return made + '"';
}

}  // namespace npu
