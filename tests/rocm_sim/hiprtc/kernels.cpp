// Finds the kernels in a source, by their __global__.
#include "program.h"

#include <cctype>

namespace {
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// A copy of the same length without comments, strings and preprocessor lines, so that only code is left.
std::string code_only(const std::string &source) {
    std::string code = source;
    const auto blank = [&](size_t from, size_t to) {
        for (size_t i = from; i < to && i < code.size(); i++)
            if (code[i] != '\n') code[i] = ' ';
    };
    const auto end_of = [&](const char *mark, size_t from) {
        const size_t at = source.find(mark, from);
        return at == std::string::npos ? source.size() : at;
    };
    bool line_is_empty = true;
    for (size_t i = 0; i < source.size(); i++) {
        size_t end = i;
        if (!source.compare(i, 2, "//")) {
            end = end_of("\n", i);
        } else if (!source.compare(i, 2, "/*")) {
            end = end_of("*/", i + 2) + 2;
        } else if (source[i] == '"') {
            for (end = i + 1; end < source.size() && source[end] != '"'; end++)
                if (source[end] == '\\') end++;
            end++;
        } else if (source[i] == '#' && line_is_empty) {
            do end = end_of("\n", end == i ? i : end + 1);
            while (end < source.size() && source[end - 1] == '\\');
        }
        if (end > i) {
            blank(i, end);
            i = end - 1;
        }
        if (i < source.size() && source[i] == '\n') line_is_empty = true;
        else if (i < source.size() && !std::isspace(static_cast<unsigned char>(code[i]))) line_is_empty = false;
    }
    return code;
}

size_t skip_parentheses(const std::string &code, size_t open) {
    int depth = 0;
    for (size_t i = open; i < code.size(); i++) {
        depth += code[i] == '(' ? 1 : code[i] == ')' ? -1 : 0;
        if (!depth) return i + 1;
    }
    return code.size();
}

// The name in front of `parenthesis`.
std::string name_before(const std::string &code, size_t parenthesis) {
    size_t end = parenthesis;
    while (end > 0 && std::isspace(static_cast<unsigned char>(code[end - 1]))) end--;
    size_t start = end;
    while (start > 0 && is_name(code[start - 1])) start--;
    return code.substr(start, end - start);
}
} // namespace

std::vector<std::string> plain_kernels(const std::string &source) {
    static const std::string mark = "__global__", bounds = "__launch_bounds__";
    const std::string code = code_only(source);
    std::vector<std::string> names;
    for (size_t at = code.find(mark); at != std::string::npos; at = code.find(mark, at + 1)) {
        size_t open = code.find('(', at);
        if (open != std::string::npos && name_before(code, open) == bounds)
            open = code.find('(', skip_parentheses(code, open));
        if (open == std::string::npos) break;
        size_t statement = at; // where the declaration starts
        while (statement > 0 && std::string("{};").find(code[statement - 1]) == std::string::npos) statement--;
        const std::string head = code.substr(statement, at - statement);
        const std::string name = name_before(code, open);
        if (head.find("template") == std::string::npos && !name.empty()) names.push_back(name);
    }
    return names;
}
