// Just enough JSON to read what the compiler answers and to write what it is asked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

class Json {
public:
    // Throws INTERNAL for text that is not JSON.
    static Json parse(std::string_view text);

    // A member of an object, or null where there is none.
    const Json& operator[](const std::string& name) const;
    bool is_null() const { return kind_ == Kind::null; }
    // Each throws INTERNAL when the value is of another kind; the second form has a default for null.
    const std::vector<Json>& items() const;              // of an array; null has none
    const std::map<std::string, Json>& members() const;  // of an object; null has none
    const std::string& text() const;
    std::string text(const std::string& otherwise) const { return is_null() ? otherwise : text(); }
    double number() const;
    int64_t integer() const { return static_cast<int64_t>(number()); }
    int64_t integer(int64_t otherwise) const { return is_null() ? otherwise : integer(); }
    bool truth(bool otherwise) const;
    bool is_number() const { return kind_ == Kind::number; }
    std::vector<int64_t> integers() const;

private:
    enum class Kind { null, boolean, number, text, array, object };
    struct Parser;
    Kind kind_ = Kind::null;
    bool boolean_ = false;
    double number_ = 0;
    std::string text_;
    std::vector<Json> items_;
    std::map<std::string, Json> members_;
};

std::string json_quote(std::string_view text);

}  // namespace npu
