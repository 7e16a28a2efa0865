// Records in a Store: whatever somebody wrote there gives a record or nothing.
#include "c10d_plugin/store/record.h"

#include <gtest/gtest.h>

#include <random>

namespace weft::collectives {
namespace {

TEST(Record, ComesBackAsItWasSet) {
  const std::string text = Record().set("name", "host/12").set("bytes", 4096).toText();
  const auto record = Record::fromText(text);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->text("name"), "host/12");
  EXPECT_EQ(record->number("bytes"), 4096U);
  EXPECT_EQ(record->text("other"), "");
  EXPECT_FALSE(record->number("other"));
}

TEST(Record, AValueKeepsItsOwnField) {
  const auto record = Record::fromText(Record().set("why", "no\nsocket=evil").toText());
  ASSERT_TRUE(record);
  EXPECT_EQ(record->text("socket"), "");
  EXPECT_EQ(record->text("why"), "no socket=evil");
}

TEST(Record, RefusesWhatIsNone) {
  EXPECT_FALSE(Record::fromText("no fields"));
  EXPECT_FALSE(Record::fromText(std::string((std::size_t{1} << 20) + 1, '=')));
  const auto record = Record::fromText("a=12x\nb=-1\nc=99999999999999999999\nd=\n");
  ASSERT_TRUE(record);
  for (const char* const field : {"a", "b", "c", "d"})
    EXPECT_FALSE(record->number(field)) << field;
}

TEST(Record, TakesAnyBytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 40, '\0');
    for (char& c : text)
      c = "a=\n7\xff"[random() % 5];
    if (const auto record = Record::fromText(text)) static_cast<void>(record->number("a"));
  }
}

}  // namespace
}  // namespace weft::collectives
