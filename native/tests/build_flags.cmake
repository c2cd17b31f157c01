# How everything is compiled in a build of the native tests (KVSTORE_BUILD_TESTS): asserts live, a sanitizer where
# KVSTORE_SANITIZE names one, and optimised little, as such a build is compiled far more often than it is run.
add_compile_options(-UNDEBUG -Og -g1)
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)  # Nothing goes into a shared library, and all have one precompiled header.
if(KVSTORE_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  if(KVSTORE_LIBFUZZER)
    add_compile_options(-O1 -fsanitize=fuzzer-no-link)
  endif()
elseif(KVSTORE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT KVSTORE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "KVSTORE_SANITIZE must be empty, 'address' or 'thread', not '${KVSTORE_SANITIZE}'")
endif()

# Most of the time to compile one of our files goes into the standard headers: they are compiled once for all of them.
# A compiler cache knows them from earlier builds already. To be called when every target is defined.
function(kvstore_precompile_headers)
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cpp "")
  add_library(kvstore_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cpp)
  target_precompile_headers(kvstore_precompiled PRIVATE <algorithm> <atomic> <chrono> <condition_variable> <cstring>
    <deque> <functional> <list> <map> <memory> <mutex> <optional> <set> <sstream> <stdexcept> <string> <system_error>
    <thread> <unordered_map> <unordered_set> <utility> <vector>)
  kvstore_reuse_precompiled_headers(${CMAKE_SOURCE_DIR})
endfunction()

function(kvstore_reuse_precompiled_headers directory)
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(STATIC_LIBRARY|OBJECT_LIBRARY|EXECUTABLE)$" AND NOT target STREQUAL kvstore_precompiled)
      target_precompile_headers(${target} REUSE_FROM kvstore_precompiled)
    endif()
  endforeach()
  get_property(folders DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(folder ${folders})
    kvstore_reuse_precompiled_headers(${folder})
  endforeach()
endfunction()
